// SPDX-License-Identifier: BSD-3-Clause
#include "comm/schedule/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "comm/schedule/pass_orders.hpp"
#include "core/base/error.hpp"

namespace deltapipe {
namespace {

constexpr std::array kSchedules = {
    Schedule{"gpipe", "arXiv 1811.06965", gpipe_passes, gpipe_messages_ahead,
             ideal_bubble_fraction},
    Schedule{"1f1b", "arXiv 1806.03377", one_forward_one_backward_passes,
             one_forward_one_backward_messages_ahead, ideal_bubble_fraction},
    Schedule{"zb-h1", "arXiv 2401.10241", zb_h1_passes, one_forward_one_backward_messages_ahead,
             zb_h1_bubble_fraction, true},
    Schedule{"interleaved", "arXiv 2104.04473", interleaved_passes, interleaved_messages_ahead,
             interleaved_bubble_fraction, false, true},
};

void check_shape(const ScheduleShape& shape) {
  DELTAPIPE_ASSERT(shape.stage >= 0 && shape.stage < shape.stages && shape.micro_batches >= 0 &&
                       shape.in_flight > 0,
                   fmt::format("stage {} of {}, {} micro-batches, {} in flight", shape.stage,
                               shape.stages, shape.micro_batches, shape.in_flight));
  DELTAPIPE_ASSERT(
      shape.first_trained_stage >= 0 && shape.first_trained_stage < shape.stages &&
          (shape.first_trained_stage == 0 ||
           ((shape.embedding_frozen || shape.embedding == EmbeddingPlace::none) &&
            !shape.trains_common)),
      fmt::format("trained from stage {} of {}", shape.first_trained_stage, shape.stages));
}

void check_shapes(const Schedule& schedule, std::span<const ScheduleShape> stages) {
  DELTAPIPE_ASSERT(!stages.empty() && (stages.size() == 1 || schedule.interleaves),
                   fmt::format("{} stages of {}", stages.size(), schedule.name));
  for (std::size_t i = 0; i < stages.size(); ++i) {
    check_shape(stages[i]);
    DELTAPIPE_ASSERT(
        stages[i].stages_per_rank == static_cast<int>(stages.size()) &&
            stages[i].stages % stages[i].stages_per_rank == 0 &&
            stages[i].local() == static_cast<int>(i) && stages[i].rank() == stages[0].rank(),
        fmt::format("stage {} of {} as number {} of a rank", stages[i].stage, stages[i].stages, i));
  }
}

/// Slots of micro-batches that are alive; a new one takes the lowest free slot.
class Slots {
 public:
  int take(int micro_batch) {
    const int slot = free_.empty() ? most_++ : free_.extract(free_.begin()).value();
    held_.emplace(micro_batch, slot);
    return slot;
  }
  int of(int micro_batch) const { return held_.at(micro_batch); }
  void free(int micro_batch) { free_.insert(held_.extract(micro_batch).mapped()); }
  int most() const { return most_; }

 private:
  std::map<int, int> held_;  ///< slot of each micro-batch
  std::set<int> free_;
  int most_ = 0;
};

/// Returns true if the pass is the micro-batch's last one.
bool ends(PassKind kind) {
  return kind == PassKind::backward || kind == PassKind::backward_parameters;
}

/// Appends one stage's instructions to its rank's program.
class Writer {
 public:
  Writer(const ScheduleShape& shape, Program& program, int next_micro_batches = 0)
      : shape_(shape),
        program_(program),
        next_micro_batches_(next_micro_batches),
        first_(shape.stage == 0),
        last_(shape.stage + 1 == shape.stages),
        borrows_(shape.embedding == EmbeddingPlace::shared && shape.stages > 1 &&
                 !shape.embedding_frozen) {}

  void send_embeddings() {
    if (!borrows_ || !last_) return;
    for (int m = 0; m < shape_.micro_batches; ++m)
      if (begins_row_group(m)) add(Action::send_embedding, m);
  }
  void forward(int micro_batch, int slot) {
    if (borrows_ && first_ && begins_row_group(micro_batch))
      add(Action::receive_embedding, micro_batch);
    if (!first_) add(Action::receive_activation, micro_batch, slot);
    send_next_embedding(micro_batch);
    add(Action::forward, micro_batch, slot);
    if (!last_) add(Action::send_activation, micro_batch, slot);
  }
  /// Sends groups of the next step that begin after the last micro-batch of this step.
  void send_other_next_embeddings() {
    for (int m = shape_.micro_batches; m < next_micro_batches_; ++m) send_next_embedding(m);
  }
  /// Appends a backward pass; `action` is backward or backward_inputs.
  void backward(Action action, int micro_batch, int slot) {
    if (action == Action::backward) announce_final(micro_batch);
    if (!last_) add(Action::receive_gradient, micro_batch, slot);
    add(action, micro_batch, slot);
    if (shape_.stage > shape_.first_trained_stage) add(Action::send_gradient, micro_batch, slot);
    if (borrows_ && first_ && ends_gradient_group(micro_batch))
      add(Action::send_embedding_gradient, micro_batch);
  }
  void backward_parameters(int micro_batch, int slot) {
    announce_final(micro_batch);
    add(Action::backward_parameters, micro_batch, slot);
  }
  void finish_gradients() {
    if (shape_.micro_batches == 0) add(Action::reduce_zeros);
    if (shape_.micro_batches > 0 && owns_embedding() && !shape_.embedding_frozen) {
      for (int m = 0; borrows_ && m < shape_.micro_batches; ++m)
        if (ends_gradient_group(m)) add(Action::receive_embedding_gradient, m);
      add(Action::add_embedding_gradient);
    }
  }
  void sum_common_gradient() {
    if (!shape_.trains_common || shape_.micro_batches == 0) return;
    if (!last_) add(Action::receive_common_gradient);
    add(Action::add_common_gradient);
    if (!first_) add(Action::send_common_gradient);
  }
  void finish_reductions() { add(Action::finish_reductions); }
  void update() { add(Action::update); }
  void pass_on_common_values() {
    if (!shape_.trains_common) return;
    if (!first_) add(Action::receive_common_values);
    if (!last_) add(Action::send_common_values);
  }

 private:
  void announce_final(int micro_batch) {
    if (micro_batch + 1 == shape_.micro_batches) add(Action::reduce_gradients);
  }
  bool owns_embedding() const {
    return shape_.embedding == EmbeddingPlace::first_stage ? first_
           : shape_.embedding == EmbeddingPlace::shared    ? last_
                                                           : false;
  }
  static bool begins_row_group(int micro_batch, int micro_batches) {
    const MicroBatchGroup group = row_group(micro_batch, micro_batches);
    return micro_batch < micro_batches && group.begin < group.end;
  }
  bool begins_row_group(int micro_batch) const {
    return begins_row_group(micro_batch, shape_.micro_batches);
  }
  void send_next_embedding(int micro_batch) {
    if (borrows_ && last_ && begins_row_group(micro_batch, next_micro_batches_))
      add(Action::send_next_embedding, micro_batch);
  }
  bool ends_gradient_group(int micro_batch) const {
    const MicroBatchGroup group = gradient_group(micro_batch, shape_.micro_batches);
    return group.begin < group.end;
  }
  void add(Action action, int micro_batch = -1, int slot = -1) {
    program_.push_back({action, shape_.stage, micro_batch, slot});
  }

  ScheduleShape shape_;
  Program& program_;
  int next_micro_batches_;
  bool first_, last_;
  bool borrows_;  ///< the first stage borrows the embedding's rows and returns their gradients
};

void write_pass(const Schedule& schedule, const ScheduleShape& shape, const Pass& pass,
                Slots& slots, Writer& writer) {
  const int m = pass.micro_batch;
  DELTAPIPE_ASSERT(
      pass.kind == PassKind::forward || (pass.kind == PassKind::backward) != schedule.splits(shape),
      std::string(schedule.name) + " has other backward passes than it says");
  if (!shape.has_backward()) {
    if (pass.kind == PassKind::forward) writer.forward(m, 0);
    return;
  }
  switch (pass.kind) {
    case PassKind::forward:
      writer.forward(m, slots.take(m));
      break;
    case PassKind::backward:
      writer.backward(Action::backward, m, slots.of(m));
      break;
    case PassKind::backward_inputs:
      writer.backward(Action::backward_inputs, m, slots.of(m));
      break;
    case PassKind::backward_parameters:
      writer.backward_parameters(m, slots.of(m));
      break;
  }
  if (ends(pass.kind)) slots.free(m);
}

}  // namespace

std::span<const Schedule> schedules() {
  return kSchedules;
}

const Schedule& find_schedule(std::string_view name) {
  std::string known;
  for (const Schedule& schedule : kSchedules) {
    if (schedule.name == name) return schedule;
    known += (known.empty() ? "" : ", ") + std::string(schedule.name);
  }
  throw UserError({.what = "there is no such pipeline schedule",
                   .value = std::string(name),
                   .remedy = "use one of " + known});
}

Program training_program(const Schedule& schedule, std::span<const ScheduleShape> stages) {
  check_shapes(schedule, stages);
  Program program;
  std::vector<Writer> writers;
  for (const ScheduleShape& shape : stages) writers.emplace_back(shape, program);
  std::vector<Slots> slots(stages.size());
  for (Writer& writer : writers) writer.send_embeddings();
  for (const Pass& pass : schedule.passes(stages.front()))
    write_pass(schedule, stages[pass.local], pass, slots[pass.local], writers[pass.local]);
  for (Writer& writer : writers) writer.finish_gradients();
  for (auto writer = writers.rbegin(); writer != writers.rend(); ++writer)
    writer->sum_common_gradient();
  for (Writer& writer : writers) writer.finish_reductions();
  writers.front().update();
  for (Writer& writer : writers) writer.pass_on_common_values();
  return program;
}

Program evaluation_program(const Schedule& schedule, std::span<const ScheduleShape> stages,
                           const EvaluationRows& rows) {
  check_shapes(schedule, stages);
  Program program;
  std::vector<Writer> writers;
  for (const ScheduleShape& shape : stages)
    writers.emplace_back(shape, program, rows.next_micro_batches);
  for (Writer& writer : writers)
    if (!rows.are_sent) writer.send_embeddings();
  for (const Pass& pass : schedule.passes(stages.front()))
    if (pass.kind == PassKind::forward) writers[pass.local].forward(pass.micro_batch, 0);
  for (Writer& writer : writers) writer.send_other_next_embeddings();
  return program;
}

namespace {

/// Returns, for each of the rank's stages, the most micro-batches that are alive at once in a step.
std::vector<int> most_alive(const Schedule& schedule, const ScheduleShape& shape) {
  std::vector<int> alive(static_cast<std::size_t>(shape.stages_per_rank), 0), most = alive;
  for (const Pass& pass : schedule.passes(shape)) {
    int& here = alive[static_cast<std::size_t>(pass.local)];
    int& most_here = most[static_cast<std::size_t>(pass.local)];
    if (pass.kind == PassKind::forward) most_here = std::max(most_here, ++here);
    if (ends(pass.kind)) --here;
  }
  return most;
}

/// Remaining micro-batches enlarge the groups, by less the more groups there are. The maximum is
/// therefore that of the full step or of a step with few groups.
std::vector<int> most_alive_in_groups(const Schedule& schedule, const ScheduleShape& shape) {
  constexpr int kFewGroups = 8;
  const std::int64_t few = std::int64_t{kFewGroups} * shape.in_flight * shape.ranks();
  std::vector<int> most = most_alive(schedule, shape);
  ScheduleShape step = shape;
  step.micro_batches = static_cast<int>(std::min<std::int64_t>(shape.micro_batches, few));
  for (; step.micro_batches > 0; --step.micro_batches) {
    const std::vector<int> here = most_alive(schedule, step);
    for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], here[i]);
  }
  return most;
}

/// Caches results: plans ask for each stage of a rank, and more than once.
int most_alive_in_groups(const Schedule& schedule, const ScheduleShape& shape, int local) {
  using Key = std::pair<const Schedule*, std::array<int, 5>>;
  static std::mutex mutex;
  static std::map<Key, std::vector<int>> known;
  const Key key = {
      &schedule,
      {shape.rank(), shape.ranks(), shape.stages_per_rank, shape.micro_batches, shape.in_flight}};
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace(key);
  if (is_new) found->second = most_alive_in_groups(schedule, shape);
  return found->second[static_cast<std::size_t>(local)];
}

}  // namespace

int slots_needed(const Schedule& schedule, const ScheduleShape& shape) {
  check_shape(shape);
  if (!shape.has_backward()) return 1;
  if (schedule.interleaves) return most_alive_in_groups(schedule, shape, shape.local());
  return most_alive(schedule, shape)[static_cast<std::size_t>(shape.local())];
}

int message_buffers(const Schedule& schedule, const ScheduleShape& shape) {
  constexpr int kForwardOnly = 4;
  const int wanted = std::max(kForwardOnly, schedule.messages_ahead(shape) + 1);
  return std::clamp(shape.micro_batches, 2, wanted);
}

MicroBatchGroup row_group(int micro_batch, int micro_batches) {
  if (micro_batch > 0 && !std::has_single_bit(static_cast<unsigned>(micro_batch)))
    return {micro_batch, micro_batch};
  return {micro_batch, std::min(std::max(1, 2 * micro_batch), micro_batches)};
}

MicroBatchGroup gradient_group(int micro_batch, int micro_batches) {
  const MicroBatchGroup mirrored = row_group(micro_batches - 1 - micro_batch, micro_batches);
  return {micro_batches - mirrored.end, micro_batches - mirrored.begin};
}

}  // namespace deltapipe
