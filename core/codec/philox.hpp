// Philox4x32-10 (Salmon et al., SC11) on plain unsigned numbers, so that loops over blocks run in
// vector lanes.
#pragma once

#include <cstdint>

#include "core/kokkos_compat.hpp"

namespace deltapipe::codec {

struct PhiloxBlock {
  std::uint32_t word[4];
};

KOKKOS_INLINE_FUNCTION PhiloxBlock philox(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                          std::uint32_t c3, std::uint64_t key) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace deltapipe::codec
