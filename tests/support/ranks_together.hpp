// SPDX-License-Identifier: BSD-3-Clause
// Programs of ranks with one stage, and the ranks of a pipeline in one process: each proceeds until
// it has to wait, then the next one runs.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/schedule/executor.hpp"
#include "core/base/error.hpp"

namespace deltapipe::test {

inline Program training_program(const Schedule& schedule, const ScheduleShape& shape) {
  return training_program(schedule, std::span(&shape, 1));
}
inline Program evaluation_program(const ScheduleShape& shape, const EvaluationRows& rows = {}) {
  return evaluation_program(find_schedule("gpipe"), std::span(&shape, 1), rows);
}

/// `execute(rank, instruction)` carries out a rank's next instruction, or returns false while that
/// has to wait for another rank. Returns the instructions at which ranks are stuck; an empty text
/// if all ranks finished.
template <class Execute>
std::string advance_together(std::span<const Program> programs, Execute execute) {
  std::vector<std::size_t> position(programs.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < programs.size(); ++s)
      for (; position[s] < programs[s].size() && execute(s, programs[s][position[s]]); moved = true)
        ++position[s];
  }
  std::string stuck;
  for (std::size_t s = 0; s < programs.size(); ++s)
    if (position[s] < programs[s].size())
      stuck += (stuck.empty() ? "" : "; ") + to_text(programs[s][position[s]]);
  return stuck;
}

/// Micro-batches whose messages were sent and not yet received, for every wire.
class MessagesUnderWay {
 public:
  explicit MessagesUnderWay(int buffers) : buffers_(buffers) {}

  /// Sends or receives the message if that is possible now, and returns true if it was.
  bool pass(const Transfer& message) {
    std::deque<int>& waiting = waiting_[{message.wire, message.boundary}];
    if (message.sends) {
      const bool bounded = message.wire == Wire::activation || message.wire == Wire::gradient;
      if (bounded && static_cast<int>(waiting.size()) >= buffers_) return false;
      waiting.push_back(message.micro_batch);
      return true;
    }
    if (waiting.empty()) return false;
    DELTAPIPE_ASSERT(waiting.front() == message.micro_batch,
                     fmt::format("micro-batch {} is received as {} arrives", message.micro_batch,
                                 waiting.front()));
    waiting.pop_front();
    return true;
  }
  bool none() const {
    for (const auto& [wire, waiting] : waiting_)
      if (!waiting.empty()) return false;
    return true;
  }

 private:
  int buffers_;
  std::map<std::pair<Wire, int>, std::deque<int>> waiting_;
};

/// Runs all ranks of a pipeline; handlers[i] belongs to stage i. A receive waits for its message. A
/// send waits while `buffers` messages wait on its wire; shared parameters have no such limit. The
/// handlers transfer the contents. Throws InternalError that names the instructions when the
/// programs deadlock, a receive meets another message, or a message is never received.
inline void run_together(std::span<const Program> programs,
                         std::span<InstructionHandler* const> handlers,
                         int buffers = std::numeric_limits<int>::max()) {
  std::vector<Executor> executors;
  for (const Program& program : programs) executors.emplace_back(program, handlers);
  MessagesUnderWay messages(buffers);
  const std::string stuck =
      advance_together(programs, [&](std::size_t rank, const Instruction& instruction) {
        const std::optional<Transfer> message = transfer_of(instruction);
        if (message && !messages.pass(*message)) return false;
        executors[rank].execute_next();
        return true;
      });
  DELTAPIPE_ASSERT(stuck.empty(), "the programs deadlock: " + stuck);
  DELTAPIPE_ASSERT(messages.none(), "a message is never received");
}

}  // namespace deltapipe::test
