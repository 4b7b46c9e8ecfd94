// SPDX-License-Identifier: BSD-3-Clause
// What the thread that computes is at, for who watches that steps come to an end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "core/base/observe/trace.hpp"

namespace deltapipe {

/// One thread calls begin(), doing() and end(), any thread stalls() and state().
class StepWatch {
 public:
  struct State {
    std::uint64_t step = 0;
    TimePoint since;             ///< the step's begin
    std::string doing;           ///< "forward 3"
    double longest_seconds = 0;  ///< of the steps before; 0: there were none
    bool is_stalled = false;
  };

  void begin(std::uint64_t step) {
    const std::lock_guard lock(mutex_);
    state_ = State{step, Clock::now(), {}, longest_seconds_, false};
  }
  void doing(std::string what) {
    const std::lock_guard lock(mutex_);
    if (state_) state_->doing = std::move(what);
  }
  /// is_complete: false while an exception unwinds.
  void end(bool is_complete) {
    const std::lock_guard lock(mutex_);
    if (state_ && is_complete) completed_ = state_->step;
    if (state_ && !state_->is_stalled)
      longest_seconds_ = std::max(longest_seconds_, seconds_between(state_->since, Clock::now()));
    state_.reset();
  }
  /// The last step that ended without an exception; 0: none.
  std::uint64_t completed() const {
    const std::lock_guard lock(mutex_);
    return completed_;
  }
  /// The step under way says nothing about how long steps take.
  void stalls() {
    const std::lock_guard lock(mutex_);
    if (state_) state_->is_stalled = true;
  }
  /// Nothing: no step is under way.
  std::optional<State> state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<State> state_;
  std::uint64_t completed_ = 0;
  double longest_seconds_ = 0;
};

/// A step is under way while it lives.
class WatchedStep {
 public:
  WatchedStep(StepWatch& watch, std::uint64_t step) : watch_(watch) { watch_.begin(step); }
  ~WatchedStep() { watch_.end(std::uncaught_exceptions() == exceptions_); }
  WatchedStep(const WatchedStep&) = delete;
  WatchedStep& operator=(const WatchedStep&) = delete;

 private:
  StepWatch& watch_;
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace deltapipe
