// SPDX-License-Identifier: BSD-3-Clause
// Records the activities of one step for Chrome's trace viewer. A scope costs one load while
// recording is off.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace deltapipe {

/// Clock of traces and of communication statistics.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

inline double seconds_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}
inline std::int64_t nanoseconds_of(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

enum class TraceCategory { compute, encode, wire, decode, cache, wait };
const char* name_of(TraceCategory category);

struct TraceEvent {
  std::string name;
  std::string track;  ///< row of the picture: "compute", "send 0 forward", "cache"
  TraceCategory category = TraceCategory::compute;
  std::int64_t start_ns = 0;  ///< nanoseconds_of the process's Clock
  std::int64_t duration_ns = 0;
};

/// Collects events of all threads of the process between start() and stop().
class TraceRecorder {
 public:
  static TraceRecorder& instance();

  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  void start();                    ///< discards older events and switches recording on
  std::vector<TraceEvent> stop();  ///< switches recording off and returns the events

  /// Does nothing while recording is off. Thread-safe.
  void record(TraceCategory category, const std::string& track, const std::string& name,
              TimePoint begin, TimePoint end);

 private:
  std::atomic<bool> enabled_{false};
  std::mutex mutex_;
  std::vector<TraceEvent> events_;
};

/// Records its own lifetime. `name` and `track` must outlive it (string literals); an index >= 0 is
/// appended to the name, and a stage as in "forward 3@5".
class TraceScope {
 public:
  explicit TraceScope(TraceCategory category, const char* name, long index = -1,
                      const char* track = "compute", long stage = -1)
      : active_(TraceRecorder::instance().enabled()),
        category_(category),
        name_(name),
        track_(track),
        index_(index),
        stage_(stage) {
    if (active_) begin_ = Clock::now();
  }
  ~TraceScope() {
    if (active_) finish();
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  void finish() noexcept;

  bool active_;
  TraceCategory category_;
  const char* name_;
  const char* track_;
  long index_, stage_;
  TimePoint begin_;
};

}  // namespace deltapipe
