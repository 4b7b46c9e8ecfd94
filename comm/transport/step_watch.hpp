// SPDX-License-Identifier: BSD-3-Clause
// Current work of the compute thread, for the thread that watches the duration of steps.
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

/// One thread calls begin(), doing() and end(); any thread may call stalls() and state().
class StepWatch {
 public:
  struct State {
    std::uint64_t step = 0;
    TimePoint since;             ///< begin of the step
    std::string doing;           ///< current instruction, such as "forward 3"
    double longest_seconds = 0;  ///< longest earlier step; 0: there was no earlier step
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
  /// Ends the step; is_complete is false while an exception unwinds.
  void end(bool is_complete) {
    const std::lock_guard lock(mutex_);
    if (state_ && is_complete) completed_ = state_->step;
    if (state_ && !state_->is_stalled)
      longest_seconds_ = std::max(longest_seconds_, seconds_between(state_->since, Clock::now()));
    state_.reset();
  }
  /// Returns the last step that ended without an exception; 0: no step has.
  std::uint64_t completed() const {
    const std::lock_guard lock(mutex_);
    return completed_;
  }
  /// Marks the current step as stalled: its duration does not count as that of a usual step.
  void stalls() {
    const std::lock_guard lock(mutex_);
    if (state_) state_->is_stalled = true;
  }
  /// Returns the state of the current step; nothing between steps.
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

/// Marks a step as under way during its lifetime.
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
