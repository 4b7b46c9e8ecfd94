// SPDX-License-Identifier: BSD-3-Clause
// Seconds by kernel, from Kokkos' profiling callbacks.
#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "benchmark_support.hpp"

namespace deltapipe::benchmark {

/// Counts kernels, copies and the BLAS calls of Kokkos Kernels, each without what runs inside it,
/// under the innermost region of deltapipe that they are launched in. Of one thread.
class KernelTimes {
 public:
  struct Key {
    std::string region, kernel;
    bool operator<(const Key& other) const {
      return std::tie(region, kernel) < std::tie(other.region, other.kernel);
    }
  };
  struct Time {
    double seconds = 0;
    std::uint64_t calls = 0;
  };

  /// Counts what is launched from now on until stop(); must outlive the last launch of the process.
  void start() {
    if (current() == nullptr) observe();
    counts_ = true;
  }
  void stop() { counts_ = false; }

  const std::map<Key, Time>& times() const { return times_; }

 private:
  struct Open {
    std::string label;
    double begin = 0, inside = 0;
  };

  void observe() {
    namespace tools = Kokkos::Tools::Experimental;
    current() = this;
    tools::set_begin_parallel_for_callback(begin);
    tools::set_begin_parallel_reduce_callback(begin);
    tools::set_begin_parallel_scan_callback(begin);
    tools::set_end_parallel_for_callback(end);
    tools::set_end_parallel_reduce_callback(end);
    tools::set_end_parallel_scan_callback(end);
    tools::set_push_region_callback([](const char* label) { current()->enter(label); });
    tools::set_pop_region_callback([] { current()->leave(); });
    tools::set_begin_deep_copy_callback([](Kokkos_Profiling_SpaceHandle, const char*, const void*,
                                           Kokkos_Profiling_SpaceHandle, const char*, const void*,
                                           std::uint64_t) { current()->enter("copy"); });
    tools::set_end_deep_copy_callback([] { current()->leave(); });
  }

  static KernelTimes*& current() {
    static KernelTimes* times = nullptr;
    return times;
  }
  static void begin(const char* label, std::uint32_t, std::uint64_t* id) {
    *id = 0;
    current()->enter(label);
  }
  static void end(std::uint64_t) { current()->leave(); }

  void enter(const char* label) {
    if (counts_) open_.push_back({label, wall_seconds(), 0});
  }

  void leave() {
    if (!counts_ || open_.empty()) return;
    const Open done = std::move(open_.back());
    open_.pop_back();
    const double seconds = wall_seconds() - done.begin;
    if (!open_.empty()) open_.back().inside += seconds;
    // Work between a region's kernels is the region's own.
    Time& time = times_[{region(), done.label}];
    time.seconds += seconds - done.inside;
    ++time.calls;
  }

  std::string region() const {
    for (auto open = open_.rbegin(); open != open_.rend(); ++open)
      if (open->label.rfind("deltapipe::", 0) == 0) return open->label;
    return "";
  }

  bool counts_ = false;
  std::vector<Open> open_;
  std::map<Key, Time> times_;
};

}  // namespace deltapipe::benchmark
