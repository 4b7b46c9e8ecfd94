// SPDX-License-Identifier: BSD-3-Clause
#include "support/kernel_labels.hpp"

#include <Kokkos_Core.hpp>
#include <array>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <regex>
#include <set>

namespace deltapipe::test {

namespace {

std::mutex mutex;
std::set<std::string> bad_labels;

void see(const char* what, const char* label) {
  if (is_proper_label(label)) return;
  const std::lock_guard lock(mutex);
  bad_labels.insert(std::string(what) + " '" + label + "'");
}

thread_local LaunchObserver* launch_observer = nullptr;

void see_kernel(const char* what, const char* label, std::uint32_t device) {
  see(what, label);
  if (launch_observer != nullptr) launch_observer->kernel(label, device);
}
void see_for(const char* label, std::uint32_t device, std::uint64_t*) {
  see_kernel("parallel_for", label, device);
}
void see_reduce(const char* label, std::uint32_t device, std::uint64_t*) {
  see_kernel("parallel_reduce", label, device);
}
void see_scan(const char* label, std::uint32_t device, std::uint64_t*) {
  see_kernel("parallel_scan", label, device);
}
void see_fence(const char* label, std::uint32_t device, std::uint64_t*) {
  if (launch_observer != nullptr) launch_observer->fence(label, device);
}
void see_region(const char* label) {
  see("region", label);
}
void see_view(Kokkos_Profiling_SpaceHandle, const char* label, const void*, std::uint64_t) {
  see("View", label);
}

}  // namespace

bool is_proper_label(const std::string& label) {
  // Ours and a test's own; Kokkos' copies, fills and scratch memory; Kokkos Kernels.
  static const std::regex proper(
      "deltapipe(::[A-Za-z0-9_]+)+::[^ ]+|test.*|Kokkos([A-Z][a-z]+)?::.*|KokkosBlas[0-9].*");
  return std::regex_match(label, proper);
}

void watch_without_fences() {
#if KOKKOS_VERSION >= 40000
  Kokkos::Tools::Experimental::set_request_tool_settings_callback(
      [](std::uint32_t, Kokkos_Tools_ToolSettings* settings) {
        settings->requires_global_fencing = false;
      });
#endif
}

void watch_kernel_labels() {
  namespace tools = Kokkos::Tools::Experimental;
  tools::set_begin_parallel_for_callback(see_for);
  tools::set_begin_parallel_reduce_callback(see_reduce);
  tools::set_begin_parallel_scan_callback(see_scan);
  tools::set_begin_fence_callback(see_fence);
  tools::set_push_region_callback(see_region);
  tools::set_allocate_data_callback(see_view);
}

void observe_launches(LaunchObserver* observer) {
  launch_observer = observer;
}

std::vector<std::string> bad_kernel_labels() {
  const std::lock_guard lock(mutex);
  return {bad_labels.begin(), bad_labels.end()};
}

int report_kernel_labels() {
  const auto bad = bad_kernel_labels();
  for (const auto& label : bad)
    std::fprintf(stderr, "label is not deltapipe::Component::what: %s\n", label.c_str());
  return bad.empty() ? 0 : 1;
}

}  // namespace deltapipe::test
