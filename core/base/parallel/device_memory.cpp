// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/parallel/device_memory.hpp"

#include <cstddef>
#include <cstring>

#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe {

DeviceMemory device_memory() {
#if defined(KOKKOS_ENABLE_CUDA)
  int number = 0;
  std::size_t available = 0, total = 0;
  cudaDeviceProp properties;
  if (kHostExecution || cudaGetDevice(&number) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, number) != cudaSuccess ||
      cudaMemGetInfo(&available, &total) != cudaSuccess)
    return {};
  std::uint64_t halves[2];
  static_assert(sizeof halves == sizeof properties.uuid.bytes);
  std::memcpy(halves, properties.uuid.bytes, sizeof halves);
  return {halves[0] ^ halves[1], total, available};
#elif defined(KOKKOS_ENABLE_HIP)
  int number = 0;
  std::size_t available = 0, total = 0;
  char address[16] = {};  // "0000:65:00.0" on the PCI bus
  if (kHostExecution || hipGetDevice(&number) != hipSuccess ||
      hipDeviceGetPCIBusId(address, sizeof address, number) != hipSuccess ||
      hipMemGetInfo(&available, &total) != hipSuccess)
    return {};
  std::uint64_t halves[2];
  static_assert(sizeof halves == sizeof address);
  std::memcpy(halves, address, sizeof halves);
  return {halves[0] ^ halves[1], total, available};
#else
  return {};
#endif
}

int device_of_thread() {
  int number = -1;
#if defined(KOKKOS_ENABLE_CUDA)
  if (!kHostExecution && cudaGetDevice(&number) != cudaSuccess) number = -1;
#elif defined(KOKKOS_ENABLE_HIP)
  if (!kHostExecution && hipGetDevice(&number) != hipSuccess) number = -1;
#endif
  return number;
}

void set_device_of_thread([[maybe_unused]] int device) noexcept {
#if defined(KOKKOS_ENABLE_CUDA)
  if (device >= 0) (void)cudaSetDevice(device);
#elif defined(KOKKOS_ENABLE_HIP)
  if (device >= 0) (void)hipSetDevice(device);
#endif
}

}  // namespace deltapipe
