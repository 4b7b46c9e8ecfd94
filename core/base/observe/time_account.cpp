// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/observe/time_account.hpp"

#include <algorithm>
#include <utility>

namespace deltapipe {

void IntervalSet::add(TimePoint begin, TimePoint end) {
  if (begin >= end) return;
  const auto first = std::lower_bound(
      intervals_.begin(), intervals_.end(), begin,
      [](const Interval& interval, TimePoint time) { return interval.end < time; });
  auto last = first;
  for (; last != intervals_.end() && last->begin <= end; ++last) {
    begin = std::min(begin, last->begin);
    end = std::max(end, last->end);
  }
  intervals_.insert(intervals_.erase(first, last), {begin, end});
}

void IntervalSet::forget_before(TimePoint time) {
  const auto kept =
      std::partition_point(intervals_.begin(), intervals_.end(),
                           [&](const Interval& interval) { return interval.end <= time; });
  intervals_.erase(intervals_.begin(), kept);
  if (!intervals_.empty()) intervals_.front().begin = std::max(intervals_.front().begin, time);
}

double IntervalSet::seconds() const {
  double sum = 0;
  for (const Interval& interval : intervals_) sum += seconds_between(interval.begin, interval.end);
  return sum;
}

double IntervalSet::seconds_outside(const IntervalSet& a, const IntervalSet& b) const {
  IntervalSet all = a;
  for (const Interval& interval : b.intervals_) all.add(interval.begin, interval.end);
  double sum = seconds();
  auto other = all.intervals_.begin();
  for (const Interval& interval : intervals_) {
    while (other != all.intervals_.end() && other->end <= interval.begin) ++other;
    for (auto it = other; it != all.intervals_.end() && it->begin < interval.end; ++it)
      sum -= seconds_between(std::max(interval.begin, it->begin), std::min(interval.end, it->end));
  }
  return sum;
}

void TimeAccount::close(TimePoint at) {
  if (at <= since_) return;
  if (!suspended_) {
    report_.seconds[static_cast<std::size_t>(activity_)] += seconds_between(since_, at);
    if (activity_ == Activity::wire_exposed || activity_ == Activity::bubble ||
        activity_ == Activity::replicas)
      waits_.add(since_, at);
  } else {
    suspensions_.add(since_, at);
  }
  since_ = at;
}

Activity TimeAccount::change(Activity activity, TimePoint at) {
  close(at);
  return std::exchange(activity_, activity);
}

void TimeAccount::waited(TimePoint begin, TimePoint sent, TimePoint end) {
  const Activity former = change(Activity::bubble, begin);
  change(Activity::wire_exposed, std::clamp(sent, begin, end));
  change(former, end);
}

void TimeAccount::suspend(TimePoint at) {
  if (suspended_) return;
  close(at);
  report_.wall += seconds_between(opened_, at);
  suspended_ = true;
}

void TimeAccount::resume(TimePoint at) {
  if (!suspended_) return;
  close(at);
  opened_ = at;
  suspended_ = false;
}

double TimeAccount::open_seconds(TimePoint now) const {
  return report_.wall + (suspended_ ? 0 : seconds_between(opened_, now));
}

TimeReport TimeAccount::take(TimePoint now) {
  close(now);
  report_.wall = open_seconds(now);
  opened_ = now;
  const IntervalSet none;
  report_.wire = transfers_.seconds_outside(suspensions_, none) - wire_taken_;
  report_.wire_hidden = transfers_.seconds_outside(suspensions_, waits_) - hidden_taken_;
  // A transfer may be reported one take() after its end; older ones have been reported.
  former_take_ = std::exchange(last_take_, now);
  for (IntervalSet* set : {&transfers_, &suspensions_, &waits_}) set->forget_before(former_take_);
  wire_taken_ = transfers_.seconds_outside(suspensions_, none);
  hidden_taken_ = transfers_.seconds_outside(suspensions_, waits_);
  return std::exchange(report_, {});
}

}  // namespace deltapipe
