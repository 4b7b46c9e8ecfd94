// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11) keyed by what a number is for,
// so that results depend neither on the layout of ranks nor on the number of threads.
#pragma once

#include <Random123/philox.h>

#include <cstdint>

#include "core/kokkos_compat.hpp"

namespace deltapipe {

/// SplitMix64's finaliser: spreads what differs in a few bits over all of them.
KOKKOS_INLINE_FUNCTION constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// One stream of random numbers: (seed, step) and a site within the step.
struct RandomStream {
  std::uint64_t key = 0;
  std::uint32_t site = 0;

  RandomStream() = default;
  RandomStream(std::uint64_t seed, std::uint64_t step, std::uint32_t site_in_step)
      : key(mix_bits(seed + 0x9e3779b97f4a7c15ull * (step + 1))), site(site_in_step) {}

  /// Four uniform 32-bit numbers for elements 4*block ... 4*block+3 of a sample.
  KOKKOS_FORCEINLINE_FUNCTION void draw(std::uint64_t sample, std::uint32_t block,
                                        std::uint32_t out[4]) const {
    const r123::Philox4x32::ctr_type counter = {{block, site, static_cast<std::uint32_t>(sample),
                                                 static_cast<std::uint32_t>(sample >> 32)}};
    const r123::Philox4x32::key_type words = {
        {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}};
    const r123::Philox4x32::ctr_type r = r123::Philox4x32()(counter, words);
    for (int i = 0; i < 4; ++i) out[i] = r.v[i];
  }
};

}  // namespace deltapipe
