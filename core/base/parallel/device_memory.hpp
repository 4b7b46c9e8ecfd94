// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace deltapipe {

/// Memory of the device that kernels run on, in bytes.
struct DeviceMemory {
  std::uint64_t device = 0;     ///< distinguishes the devices of a machine
  std::uint64_t total = 0;      ///< 0: kernels run in the host's memory, or unknown
  std::uint64_t available = 0;  ///< part of `total` that is not in use now
};

/// Returns the device's memory. Call it on the thread that started Kokkos. `device` is an identity
/// from hardware and driver, because device numbers differ between processes that see different
/// devices.
DeviceMemory device_memory();

/// Returns the number of the device that the calling thread uses; -1: none.
int device_of_thread();
/// Makes the calling thread use another thread's device. Libraries that receive memory of that
/// device require this. Does nothing for -1, or if the device refuses.
void set_device_of_thread(int device) noexcept;

}  // namespace deltapipe
