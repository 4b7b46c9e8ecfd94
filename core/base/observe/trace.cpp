// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/observe/trace.hpp"

#include <fmt/format.h>

#include <utility>

namespace deltapipe {

const char* name_of(TraceCategory category) {
  switch (category) {
    case TraceCategory::compute:
      return "compute";
    case TraceCategory::encode:
      return "encode";
    case TraceCategory::wire:
      return "wire";
    case TraceCategory::decode:
      return "decode";
    case TraceCategory::cache:
      return "cache";
    case TraceCategory::wait:
      return "wait";
  }
  return "unknown";
}

TraceRecorder& TraceRecorder::instance() {
  static TraceRecorder recorder;
  return recorder;
}

void TraceRecorder::start() {
  const std::lock_guard lock(mutex_);
  events_.clear();
  enabled_ = true;
}

std::vector<TraceEvent> TraceRecorder::stop() {
  const std::lock_guard lock(mutex_);
  enabled_ = false;
  return std::exchange(events_, {});
}

void TraceRecorder::record(TraceCategory category, const std::string& track,
                           const std::string& name, TimePoint begin, TimePoint end) {
  if (!enabled()) return;
  const std::lock_guard lock(mutex_);
  if (!enabled_) return;
  events_.push_back(
      {name, track, category, nanoseconds_of(begin), nanoseconds_of(end) - nanoseconds_of(begin)});
}

void TraceScope::finish() noexcept {
  try {
    std::string name = name_;
    if (index_ >= 0) name += fmt::format(" {}", index_);
    if (stage_ >= 0) name += fmt::format("@{}", stage_);
    TraceRecorder::instance().record(category_, track_, name, begin_, Clock::now());
  } catch (...) {
    // Drops an event if memory is exhausted: a trace must never stop a run.
  }
}

}  // namespace deltapipe
