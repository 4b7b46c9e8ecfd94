// SPDX-License-Identifier: BSD-3-Clause
// Where a thread's time goes: at every moment it does one thing, so that the parts add up to the
// wall time, and what was on the wire meanwhile is counted once.
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
  wire_exposed,  ///< waits for a message that its sender has sent, or for room to send one
  bubble,        ///< waits for a rank that has nothing to send yet
  replicas,      ///< waits for the sums over replicas
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
  /// Seconds of this set that are in none of the two others.
  double seconds_outside(const IntervalSet& a, const IntervalSet& b) const;
  const std::vector<Interval>& intervals() const { return intervals_; }

 private:
  std::vector<Interval> intervals_;
};

struct TimeReport {
  std::array<double, kActivities> seconds{};
  double wall = 0;         ///< measured apart from `seconds`, which add up to it
  double wire = 0;         ///< at least one message to or from this rank was travelling
  double wire_hidden = 0;  ///< of `wire`, while the thread did not wait
  double operator[](Activity activity) const { return seconds[static_cast<std::size_t>(activity)]; }
};

/// Belongs to one thread. Times may lie in the past, up to the last change. A new account is
/// suspended.
class TimeAccount {
 public:
  explicit TimeAccount(TimePoint now = Clock::now()) : since_(now), opened_(now) {}

  /// From `at` on the thread does `activity`; returns what it did before.
  Activity change(Activity activity, TimePoint at);
  /// The thread waited for a message that was sent at `sent`: a bubble until then, exposed
  /// communication after it.
  void waited(TimePoint begin, TimePoint sent, TimePoint end);
  /// A message travelled; may be told late, and overlap with others.
  void transfer(TimePoint begin, TimePoint end) {
    transfers_.add(std::max(begin, former_take_), end);
  }

  /// Excludes the time until resume() from the account (evaluations, output).
  void suspend(TimePoint at);
  void resume(TimePoint at);

  /// Wall time since the last take().
  double open_seconds(TimePoint now) const;
  /// Since the last take(). Transfers of earlier times that were not told by then count here.
  TimeReport take(TimePoint now);

 private:
  void close(TimePoint at);

  Activity activity_ = Activity::other;
  bool suspended_ = true;
  TimePoint since_;   ///< of activity_
  TimePoint opened_;  ///< since when `wall` of the report is not up to date
  TimePoint former_take_{}, last_take_{};
  TimeReport report_;
  IntervalSet waits_, suspensions_, transfers_;
  double wire_taken_ = 0, hidden_taken_ = 0;  ///< of the transfers that are kept
};

/// The thread does `activity` until the end of the scope.
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
