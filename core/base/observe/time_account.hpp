// SPDX-License-Identifier: BSD-3-Clause
// Divides a thread's time by activity. The thread does one thing at every moment, so that the parts
// add up to the wall time. Time on the wire is counted once, even if messages overlap.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "core/base/observe/trace.hpp"

namespace deltapipe {

/// Activity of the compute thread.
enum class Activity {
  compute,       ///< kernels of the model and the optimizer
  codec,         ///< encoding and decoding
  cache,         ///< activation memories: copies and waiting for the I/O thread
  wire_exposed,  ///< waiting for a message that its sender has sent, or for room to send one
  bubble,        ///< waiting for a rank that has nothing to send yet
  replicas,      ///< waiting for the sums over replicas
  other          ///< loading samples, bookkeeping, checksums
};
inline constexpr std::size_t kActivities = 7;

/// A set of moments, kept as sorted and disjoint intervals.
class IntervalSet {
 public:
  struct Interval {
    TimePoint begin;
    TimePoint end;
  };
  void add(TimePoint begin, TimePoint end);
  void forget_before(TimePoint time);
  double seconds() const;
  /// Returns the seconds of this set that are in neither of the two others.
  double seconds_outside(const IntervalSet& a, const IntervalSet& b) const;
  const std::vector<Interval>& intervals() const { return intervals_; }

 private:
  std::vector<Interval> intervals_;
};

struct TimeReport {
  std::array<double, kActivities> seconds{};
  double wall = 0;         ///< measured independently of `seconds`, which add up to it
  double wire = 0;         ///< time with at least one message on its way to or from this rank
  double wire_hidden = 0;  ///< part of `wire` in which the thread did not wait
  double operator[](Activity activity) const { return seconds[static_cast<std::size_t>(activity)]; }
};

/// Belongs to one thread. Times may lie in the past, up to the last change. A new account is
/// suspended.
class TimeAccount {
 public:
  explicit TimeAccount(TimePoint now = Clock::now()) : since_(now), opened_(now) {}

  /// Starts `activity` at `at`; returns the activity before it.
  Activity change(Activity activity, TimePoint at);
  /// Adds a wait for a message that was sent at `sent`: a bubble until then, exposed communication
  /// after it.
  void waited(TimePoint begin, TimePoint sent, TimePoint end);
  /// Adds the time in which a message travelled. It may be reported late and overlap with others.
  void transfer(TimePoint begin, TimePoint end) {
    transfers_.add(std::max(begin, former_take_), end);
  }

  /// Excludes the time until resume() from the account (evaluations, output).
  void suspend(TimePoint at);
  void resume(TimePoint at);

  /// Returns the wall time since the last take().
  double open_seconds(TimePoint now) const;
  /// Returns the times since the last take(). Earlier transfers that were reported after it count
  /// here.
  TimeReport take(TimePoint now);

 private:
  void close(TimePoint at);

  Activity activity_ = Activity::other;
  bool suspended_ = true;
  TimePoint since_;   ///< start of activity_
  TimePoint opened_;  ///< time up to which `wall` of the report is complete
  TimePoint former_take_{}, last_take_{};
  TimeReport report_;
  IntervalSet waits_, suspensions_, transfers_;
  double wire_taken_ = 0, hidden_taken_ = 0;  ///< seconds of the transfers that are kept
};

/// Counts the time until the end of the scope as `activity`.
class ActivityScope {
 public:
  ActivityScope(TimeAccount& account, Activity activity)
      : account_(account), former_(account.change(activity, Clock::now())) {}
  ~ActivityScope() { account_.change(former_, Clock::now()); }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  TimeAccount& account_;
  Activity former_;
};

}  // namespace deltapipe
