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

}  // namespace deltapipe
