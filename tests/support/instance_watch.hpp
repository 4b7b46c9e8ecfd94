// SPDX-License-Identifier: BSD-3-Clause
// Whether work goes to the execution space instances that it was given, and who waits for them.
//
// Backends that number their instances (CUDA, HIP) are asked where each kernel and fence went. The
// others are watched by keeping the default instance busy: what is queued there by mistake, an
// allocation, a copy without an instance or a fence of all of them has to wait, and the watch takes
// notice. Before Kokkos 4 nothing tells instances apart, and the watch sees nothing.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/parallel/views.hpp"
#include "support/kernel_labels.hpp"

namespace deltapipe::test {

#if KOKKOS_VERSION >= 40000 && !defined(KOKKOS_ENABLE_CUDA) && !defined(KOKKOS_ENABLE_HIP) && \
    !defined(KOKKOS_ENABLE_SYCL)
#define DELTAPIPE_TEST_INSTANCES_BLOCK 1
#endif

/// An instance other than the default one; before Kokkos 4 that one.
inline ExecSpace another_instance() {
#if KOKKOS_VERSION >= 40000
  return Kokkos::Experimental::partition_space(ExecSpace(), 1)[0];
#else
  return {};
#endif
}

/// Keeps an instance busy while it lives, though not for longer than kPatience.
class BusyInstance {
 public:
  static constexpr auto kPatience = std::chrono::seconds(15);

  explicit BusyInstance([[maybe_unused]] const ExecSpace& instance,
                        [[maybe_unused]] std::chrono::milliseconds duration = kPatience) {
#if DELTAPIPE_TEST_INSTANCES_BLOCK
    thread_ = std::thread([this, instance, end = std::chrono::steady_clock::now() + duration] {
      Kokkos::parallel_for("test::busy", Kokkos::RangePolicy<ExecSpace>(instance, 0, 1), [&](int) {
        started_ = true;
        while (!released_ && std::chrono::steady_clock::now() < end)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ended_by_itself_ = !released_;
      });
    });
    while (!started_) std::this_thread::yield();
#endif
  }
  ~BusyInstance() {
    release();
  }
  void release() {
    released_ = true;
    if (thread_.joinable()) thread_.join();
  }
  /// Nobody released it in time: somebody waited for it, most likely.
  bool ended_by_itself() const {
    return ended_by_itself_;
  }

 private:
  std::thread thread_;
  std::atomic<bool> started_ = false, released_ = false, ended_by_itself_ = false;
};

/// Watches from its construction to end().
class InstanceWatch : private LaunchObserver {
 public:
  explicit InstanceWatch(std::vector<ExecSpace> given)
      : given_(std::move(given)), busy_(ExecSpace()) {
    observe_launches(this);
  }
  ~InstanceWatch() override { end(); }

  void end() {
    observe_launches(nullptr);
    busy_.release();
    if (busy_.ended_by_itself()) strays_.push_back("the default instance, at '" + held_up_ + "'");
  }
  /// Work on other instances; after end().
  const std::vector<std::string>& strays() const { return strays_; }
  /// Fences of the program's own, so far.
  int fences() const { return fences_; }

 private:
  void kernel(const char* label, std::uint32_t device) override { saw(label, device); }
  void fence(const char* label, std::uint32_t device) override {
    saw(label, device);
    if (std::string(label).find("Unnamed") != std::string::npos) ++fences_;
  }
  void saw(const char* label, [[maybe_unused]] std::uint32_t device) {
    const std::lock_guard lock(mutex_);
    if (!busy_.ended_by_itself()) held_up_ = label;
#if KOKKOS_VERSION >= 40000
    namespace tools = Kokkos::Tools::Experimental;
    const auto id = [](const ExecSpace& space) { return tools::device_id(space); };
    const bool numbered = std::none_of(given_.begin(), given_.end(), [&](const ExecSpace& space) {
      return id(space) == id(ExecSpace());
    });
    if (numbered && std::none_of(given_.begin(), given_.end(),
                                 [&](const ExecSpace& space) { return id(space) == device; }))
      strays_.push_back(label);
#endif
  }

  std::vector<ExecSpace> given_;
  std::mutex mutex_;
  std::string held_up_;  ///< what began last while the default instance was busy
  std::vector<std::string> strays_;
  std::atomic<int> fences_ = 0;
  BusyInstance busy_;
};

}  // namespace deltapipe::test
