#include "comm/schedule.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/error.hpp"

namespace deltapipe {
namespace {

void check_layout(int stage, int stages, int micro_batches) {
  DELTAPIPE_ASSERT(stage >= 0 && stage < stages && micro_batches > 0,
                   "stage " + std::to_string(stage) + " of " + std::to_string(stages) + ", " +
                       std::to_string(micro_batches) + " micro-batches");
}

class Writer {
 public:
  Writer(int stage, int stages, int slots)
      : first_(stage == 0), last_(stage == stages - 1), slots_(slots) {}

  void forward(int micro_batch) {
    if (!first_) add(Action::receive_activation, micro_batch);
    add(Action::forward, micro_batch);
    if (!last_) add(Action::send_activation, micro_batch);
  }
  void backward(int micro_batch) {
    if (!last_) add(Action::receive_gradient, micro_batch);
    add(Action::backward, micro_batch);
    if (!first_) add(Action::send_gradient, micro_batch);
  }
  std::vector<Instruction> take() { return std::move(instructions_); }

 private:
  // Live micro-batches are consecutive, so the remainder never meets a slot in use.
  void add(Action action, int micro_batch) {
    instructions_.push_back({action, micro_batch, micro_batch % slots_});
  }

  bool first_;
  bool last_;
  int slots_;
  std::vector<Instruction> instructions_;
};

}  // namespace

int slots_needed(PipelineSchedule kind, int stage, int stages, int micro_batches, int in_flight) {
  check_layout(stage, stages, micro_batches);
  DELTAPIPE_ASSERT(in_flight > 0, std::to_string(in_flight));
  if (kind == PipelineSchedule::gpipe) return micro_batches;
  return std::min<std::int64_t>(micro_batches, 1 + std::int64_t{in_flight} * (stages - 1 - stage));
}

std::vector<Instruction> make_schedule(PipelineSchedule kind, int stage, int stages,
                                       int micro_batches, int in_flight) {
  const int slots = slots_needed(kind, stage, stages, micro_batches, in_flight);
  Writer writer(stage, stages, slots);
  // Both are "run `ahead` forwards, then one backward for each forward that is left, then the
  // other backwards"; GPipe runs all of them ahead.
  const int ahead = kind == PipelineSchedule::gpipe ? micro_batches : slots - 1;
  int forward = 0;
  for (; forward < ahead; ++forward) writer.forward(forward);
  for (int backward = 0; backward < micro_batches; ++backward) {
    if (forward < micro_batches) writer.forward(forward++);
    writer.backward(backward);
  }
  return writer.take();
}

int message_buffers(PipelineSchedule kind, int micro_batches, int in_flight) {
  constexpr int kGPipe = 16;
  constexpr int kForwardOnly = 4;
  const int wanted =
      kind == PipelineSchedule::gpipe ? kGPipe : std::max(kForwardOnly, in_flight + 1);
  return std::clamp(micro_batches, 2, wanted);
}

double bubble_fraction(int stages, int micro_batches) {
  check_layout(0, stages, micro_batches);
  return static_cast<double>(stages - 1) / (micro_batches + stages - 1);
}

}  // namespace deltapipe
