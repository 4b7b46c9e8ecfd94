// SPDX-License-Identifier: BSD-3-Clause
// Moves some of eight numbers together, in their order and without a branch, on processors with
// AVX2.
#pragma once

#include <array>
#include <cstdint>

#if defined(__AVX2__) && !defined(__CUDACC__) && !defined(__HIPCC__)
#include <immintrin.h>
#define DELTAPIPE_CODEC_COMPACTION 1

namespace deltapipe::codec {

/// Places of the ones of each mask of 8 bits, a byte each, from the lowest on.
inline constexpr std::array<std::uint64_t, 256> kPlacesOfOnes = [] {
  std::array<std::uint64_t, 256> places{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    int ones = 0;
    for (unsigned bit = 0; bit < 8; ++bit)
      if ((mask >> bit & 1) != 0) places[mask] |= std::uint64_t{bit} << (8 * ones++);
  }
  return places;
}();

/// Returns the places of the ones of a mask below 256, followed by zeros.
inline __m128i places_of_ones(unsigned mask) {
  return _mm_cvtsi64_si128(static_cast<long long>(kPlacesOfOnes[mask]));
}

/// Stores those of 8 numbers that a mask selects in to[0 ... ones); overwrites to[ones ... 8).
inline void store_some(__m256i numbers, __m128i places, std::uint32_t* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_permutevar8x32_epi32(numbers, _mm256_cvtepu8_epi32(places)));
}

/// Stores first + the places in to[0 ... ones); overwrites to[ones ... 8).
inline void store_places(int first, __m128i places, std::uint16_t* to) {
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(to),
      _mm_add_epi16(_mm_cvtepu8_epi16(places), _mm_set1_epi16(static_cast<short>(first))));
}

/// Does the same for some of 8 numbers of 16 bits.
inline void store_some(__m128i numbers, __m128i places, std::uint16_t* to) {
  const __m128i twice = _mm_add_epi8(places, places);
  const __m128i low = _mm_unpacklo_epi8(twice, _mm_add_epi8(twice, _mm_set1_epi8(1)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(numbers, low));
}

inline unsigned mask_of(__m256i is) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(is)));
}

}  // namespace deltapipe::codec
#endif
