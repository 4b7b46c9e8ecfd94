// SPDX-License-Identifier: BSD-3-Clause
// Lets ranks that run ahead of each other stop before the same unit of work.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// Common stop of all ranks, which work through the same sequence of units without waiting for each
/// other. When a rank asks to stop, rank 0 collects how many units each rank has begun. All ranks
/// stop after the largest of these counts. The progress threads exchange the counts, so that a rank
/// that waits for another one inside a unit does not delay them. Without a request nothing is sent.
class CommonStop {
 public:
  /// Every rank of progress.world() constructs exactly one. `progress` must outlive it.
  explicit CommonStop(ProgressThread& progress);
  ~CommonStop();
  CommonStop(const CommonStop&) = delete;
  CommonStop& operator=(const CommonStop&) = delete;

  /// Asks to stop. Any rank may call it, also several times; the first request that reaches rank 0
  /// counts. `reason` must not be 0.
  void ask(std::uint64_t reason);
  /// Must be called before each unit. Returns false if all ranks stop before this unit. Throws as
  /// ProgressThread::check() does.
  bool begin_next();
  /// Returns the reason of the request, the same on all ranks; 0: there is no request.
  std::uint64_t reason() const;

 private:
  struct State;
  ProgressThread& progress_;
  std::shared_ptr<State> state_;
};

}  // namespace deltapipe
