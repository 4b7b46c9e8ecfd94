// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/emulated_link.hpp"

#include <algorithm>

namespace deltapipe {
namespace {

constexpr std::size_t kSegmentBytes = 1448;  // bytes of a message in a TCP segment with timestamps
constexpr std::size_t kFrameOverhead = 66;   // Ethernet 14, IP 20, TCP 20 + 12
constexpr std::chrono::minutes kMemory{1};   // no message is booked this late
constexpr std::chrono::hours kForever{87600};  // longer than any run, far from the end of Clock

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(
      std::min<std::chrono::duration<double>>(std::chrono::duration<double>(seconds), kForever));
}

}  // namespace

double EmulatedLink::seconds_of(std::size_t bytes) const {
  if (settings_.bits_per_second <= 0) return 0;
  if (framing_ == Framing::ethernet)
    bytes += kFrameOverhead * ((bytes + kSegmentBytes - 1) / kSegmentBytes);
  return static_cast<double>(bytes) * 8 / settings_.bits_per_second;
}

Clock::duration EmulatedLink::latency() const {
  return duration_of(settings_.latency_seconds);
}

EmulatedLink::Passage EmulatedLink::book(TimePoint from, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  bookings_.forget_before(from - kMemory);
  const auto& taken = bookings_.intervals();
  auto next = std::upper_bound(
      taken.begin(), taken.end(), from,
      [](TimePoint time, const IntervalSet::Interval& interval) { return time < interval.end; });
  TimePoint start = from;
  if (next != taken.end() && next->begin <= from) start = next++->end;
  TimePoint end = start;
  for (Clock::duration left = duration_of(seconds_of(bytes));; ++next) {
    if (next == taken.end() || next->begin - end >= left) {
      end += left;
      break;
    }
    left -= next->begin - end;
    end = next->end;
  }
  end = std::min(end, from + kForever);
  start = std::min(start, end);
  bookings_.add(start, end);  // the free time in between is now used, too
  return {start, end, end + latency()};
}

TimePoint RankWire::book_tree(TimePoint now, int ranks, std::size_t bytes) const {
  // On the way up one of two neighbours sends and the other receives; on the way back the reverse.
  for (int reached = 1; reached < ranks; reached *= 2) {
    now = out->book(now, bytes).arrival;
    now = in->book(now, bytes).arrival;
  }
  return now;
}

TimePoint RankWire::book_broadcast(TimePoint now, int ranks, bool is_root,
                                   std::size_t bytes) const {
  for (int reached = 1; reached < ranks; reached *= 2)
    now = (is_root ? out : in)->book(now, bytes).arrival;
  return now;
}

TimePoint RankWire::book_gather(TimePoint now, bool is_root, std::size_t bytes) const {
  return is_root ? in->book(now, bytes).arrival : out->book(now, bytes).end;
}

TimePoint RankWire::book_barrier(TimePoint now, int ranks) const {
  for (int reached = 1; reached < ranks; reached *= 2)
    now = std::max(out->book(now, 1).arrival, in->book(now, 1).arrival);
  return now;
}

}  // namespace deltapipe
