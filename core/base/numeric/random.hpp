// SPDX-License-Identifier: BSD-3-Clause
// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11), keyed by the purpose of a
// number. Results therefore do not depend on the layout of ranks or on the number of threads.
#pragma once

#include <cstdint>

#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe {

/// SplitMix64's finaliser: spreads a difference in a few bits over all bits.
KOKKOS_INLINE_FUNCTION constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

struct PhiloxBlock {
  std::uint32_t word[4];
};

/// Random123's Philox4x32-10 on plain unsigned numbers, so that loops over blocks vectorise.
KOKKOS_FORCEINLINE_FUNCTION PhiloxBlock philox(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
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

/// One stream of random numbers: (seed, step) and a site within the step.
struct RandomStream {
  std::uint64_t key = 0;
  std::uint32_t site = 0;

  RandomStream() = default;
  RandomStream(std::uint64_t seed, std::uint64_t step, std::uint32_t site_in_step)
      : key(mix_bits(seed + 0x9e3779b97f4a7c15ull * (step + 1))), site(site_in_step) {}

  /// Draws four uniform 32-bit numbers for elements 4*block ... 4*block+3 of a sample.
  KOKKOS_FORCEINLINE_FUNCTION void draw(std::uint64_t sample, std::uint32_t block,
                                        std::uint32_t out[4]) const {
    const PhiloxBlock r = philox(block, site, static_cast<std::uint32_t>(sample),
                                 static_cast<std::uint32_t>(sample >> 32), key);
    for (int i = 0; i < 4; ++i) out[i] = r.word[i];
  }
};

}  // namespace deltapipe
