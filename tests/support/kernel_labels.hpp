// SPDX-License-Identifier: BSD-3-Clause
// Watches, through Kokkos' tools interface, that whatever runs or is allocated has a label that a
// profiler's user can place: deltapipe::Component::what.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltapipe::test {

/// Before Kokkos' initialisation: watching does not wait, as tools do by default before and after
/// each kernel, for all that runs anywhere.
void watch_without_fences();

/// Starts watching; between Kokkos' initialisation and its end.
void watch_kernel_labels();

/// Launches without a proper label, each once: "parallel_for 'name'".
std::vector<std::string> bad_kernel_labels();

/// Told of every kernel and fence before it begins, by the thread that launches it. Before Kokkos 4
/// fences are not told, and `device` is always the same.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;
  virtual void kernel(const char* label, std::uint32_t device) = 0;
  virtual void fence(const char* label, std::uint32_t device) = 0;
};

/// One at a time; null: nobody. Of what the calling thread launches.
void observe_launches(LaunchObserver* observer);

/// True for a proper label: deltapipe::Component::what, a test's own test..., or Kokkos' own.
bool is_proper_label(const std::string& label);

/// Prints bad_kernel_labels() to stderr; the exit status that a test program then ends with.
int report_kernel_labels();

}  // namespace deltapipe::test
