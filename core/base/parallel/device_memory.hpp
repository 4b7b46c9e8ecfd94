// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace deltapipe {

/// Memory of the device that kernels run on, in bytes.
struct DeviceMemory {
  std::uint64_t device = 0;     ///< tells the devices of a machine apart
  std::uint64_t total = 0;      ///< 0: kernels run in the host's memory, or unknown
  std::uint64_t available = 0;  ///< of it, not in use now
};

/// On the thread that started Kokkos. Device numbers differ between processes that see different
/// devices; identities that hardware and driver give do not.
DeviceMemory device_memory();

/// Number of the device that the calling thread works with; -1: none.
int device_of_thread();
/// Has the calling thread work with another thread's device, as libraries require that receive its
/// memory. Nothing for -1, and where the device refuses.
void set_device_of_thread(int device) noexcept;

}  // namespace deltapipe
