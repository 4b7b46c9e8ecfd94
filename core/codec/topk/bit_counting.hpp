// SPDX-License-Identifier: BSD-3-Clause
// Counts of ones in words, on hosts and devices.
#pragma once

#include <cstdint>

#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe::codec {

KOKKOS_INLINE_FUNCTION int ones_of(std::uint32_t word) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return __popc(word);
#else
  return __builtin_popcount(word);
#endif
}

/// Returns the place of the lowest 1 of a word that has one.
KOKKOS_INLINE_FUNCTION int lowest_one_of(std::uint64_t word) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return __ffsll(static_cast<long long>(word)) - 1;
#else
  return __builtin_ctzll(word);
#endif
}

}  // namespace deltapipe::codec
