// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/replica_sum.hpp"

#include <algorithm>

#include "comm/transport/progress_thread.hpp"
#include "core/base/observe/trace.hpp"

namespace deltapipe {

void complete(std::span<ReplicaSum* const> sums, const ExecSpace& exec, ProgressThread& progress) {
  const auto are_complete = [&] { return std::ranges::all_of(sums, &ReplicaSum::is_complete); };
  if (are_complete()) return;
  const ActivityScope waiting(progress.account(), Activity::replicas);
  const TimePoint begin = Clock::now();
  const auto missing = [&]() -> std::string {
    std::string name;
    for (const ReplicaSum* sum : sums) {
      if (sum->is_complete()) continue;
      const std::string message = sum->missing_message();
      if (message.empty()) return {};
      if (name.empty()) name = message;
    }
    return name;
  };
  while (!are_complete()) {
    progress.wait_while(missing);
    for (ReplicaSum* sum : sums) sum->poll(exec);
  }
  TraceRecorder::instance().record(TraceCategory::wait, "compute", "wait for sums over replicas",
                                   begin, Clock::now());
}

}  // namespace deltapipe
