// SPDX-License-Identifier: BSD-3-Clause
// The time that a start of a run has, and the time that its next parts are expected to take.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "core/base/observe/trace.hpp"

namespace deltapipe {

inline constexpr const char* kTimeLimitKey = "checkpoint.time_limit";

/// Limit of the deck or the end of the batch job, whichever comes first.
class TimeLimit {
 public:
  /// `seconds` is the deck's, from `start` on; 0: none.
  TimeLimit(double seconds, TimePoint start);

  /// Returns what sets the limit, such as "checkpoint.time_limit".
  const std::string& name() const { return name_; }
  /// Returns true if at most `seconds` remain.
  bool is_over_after(double seconds) const;

 private:
  double seconds_;  ///< from start_ on; 0: none
  TimePoint start_;
  std::string name_ = kTimeLimitKey;
};

/// Times that a run's next parts are expected to take, from those of its former ones. All in
/// seconds, of this start.
class ExpectedTimes {
 public:
  /// Returns true if the step took longer than all before it.
  bool add_step(double seconds);
  void add_evaluation(double seconds);
  void add_checkpoint(double seconds) { checkpoint_ = seconds; }
  /// Sets what is known before the first evaluation and the first checkpoint.
  void set_evaluation_steps(std::uint64_t steps) { evaluation_steps_ = steps; }
  void set_checkpoint_bytes(std::uint64_t bytes) { checkpoint_bytes_ = bytes; }

  double longest_step() const { return longest_step_; }
  double longest_evaluation() const { return longest_evaluation_; }
  double last_checkpoint() const { return checkpoint_; }
  /// Returns the time of `count` steps. The last one, such as an outer step of replicas, may take
  /// as long as the longest.
  double of_steps(std::uint64_t count) const;
  double of_evaluation() const;
  double of_checkpoint() const;

 private:
  double mean_step() const;
  double mean_recent_step() const;

  double longest_step_ = 0, longest_evaluation_ = 0;
  double steps_ = 0;  ///< of all but the first together, or of the only one
  std::deque<double> recent_steps_;
  std::uint64_t count_ = 0, evaluation_steps_ = 0;
  double checkpoint_ = 0;
  std::uint64_t checkpoint_bytes_ = 0;
};

}  // namespace deltapipe
