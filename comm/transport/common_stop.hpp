// SPDX-License-Identifier: BSD-3-Clause
// How ranks that run ahead of each other stop before the same unit of work.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// All ranks work through the same sequence of units, without waiting for each other. When one asks
/// to stop, rank 0 collects how many units each rank has begun; all stop after the most of these
/// counts. The progress threads exchange that, so that a rank which waits for another one inside of
/// a unit holds nobody up. Without a request nothing is sent.
class CommonStop {
 public:
  /// Every rank of progress.world() makes one, and only one. `progress` outlives it.
  explicit CommonStop(ProgressThread& progress);
  ~CommonStop();
  CommonStop(const CommonStop&) = delete;
  CommonStop& operator=(const CommonStop&) = delete;

  /// Any rank may ask, also several times; the first request that reaches rank 0 counts. `reason`
  /// is not 0.
  void ask(std::uint64_t reason);
  /// Before each unit. False: all ranks stop before this one. Throws as ProgressThread::check().
  bool begin_next();
  /// Reason of the request; the same on all ranks. 0: no request.
  std::uint64_t reason() const;

 private:
  struct State;
  ProgressThread& progress_;
  std::shared_ptr<State> state_;
};

}  // namespace deltapipe
