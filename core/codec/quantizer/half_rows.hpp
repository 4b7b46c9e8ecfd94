// SPDX-License-Identifier: BSD-3-Clause
// Rows of fp16 values, each with a power of two that moves the row's largest magnitude into fp16's
// top binade, so that gradients far below fp16's 6e-8 survive. All values that fp16 holds stay
// exact, because a row in its range is never scaled down.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"

#if defined(__F16C__) && !defined(__CUDACC__) && !defined(__HIPCC__)
#include <immintrin.h>
#define DELTAPIPE_CODEC_F16C 1
#endif

namespace deltapipe::codec {

/// halves[i] := half(scale * x[i]).
KOKKOS_INLINE_FUNCTION void halves_of_row(const RowMember& team, int n, const float* x, float scale,
                                          std::uint16_t* halves) {
  int done = 0;
#if defined(DELTAPIPE_CODEC_F16C)
  const __m256 factor = _mm256_set1_ps(scale);
  for (; done + 8 <= n; done += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(halves + done),
                     _mm256_cvtps_ph(_mm256_mul_ps(_mm256_loadu_ps(x + done), factor),
                                     _MM_FROUND_TO_NEAREST_INT));
#endif
  row_for_synced(team, n - done, [=](int i) { halves[done + i] = half_of(scale * x[done + i]); });
}

/// halves[i] := half(saturate(scale * x[i], kMaxHalf)).
KOKKOS_INLINE_FUNCTION void finite_halves_of_row(const RowMember& team, int n, const float* x,
                                                 float scale, std::uint16_t* halves) {
  int done = 0;
#if defined(DELTAPIPE_CODEC_F16C)
  const __m256 factor = _mm256_set1_ps(scale);
  const __m256 high = _mm256_set1_ps(kMaxHalf);
  const __m256 low = _mm256_set1_ps(-kMaxHalf);
  for (; done + 8 <= n; done += 8) {
    __m256 value = _mm256_mul_ps(_mm256_loadu_ps(x + done), factor);
    value = _mm256_and_ps(value, _mm256_cmp_ps(value, value, _CMP_ORD_Q));
    value = _mm256_max_ps(_mm256_min_ps(value, high), low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(halves + done),
                     _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  row_for_synced(team, n - done, [=](int i) {
    halves[done + i] = half_of(saturate(scale * x[done + i], kMaxHalf));
  });
}

/// x[i] := scale * float(halves[i]).
KOKKOS_INLINE_FUNCTION void floats_of_halves(const RowMember& team, int n,
                                             const std::uint16_t* halves, float scale, float* x) {
  int done = 0;
#if defined(DELTAPIPE_CODEC_F16C)
  const __m256 factor = _mm256_set1_ps(scale);
  for (; done + 8 <= n; done += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + done));
    _mm256_storeu_ps(x + done, _mm256_mul_ps(_mm256_cvtph_ps(half), factor));
  }
#endif
  row_for_synced(team, n - done,
                 [=](int i) { x[done + i] = scale * float_of_half(halves[done + i]); });
}

/// Returns 2^exponent, for exponents from -126 to 127.
KOKKOS_INLINE_FUNCTION float power_of_two(int exponent) {
  return float_of(static_cast<std::uint32_t>(127 + exponent) << 23);
}

/// A row in a payload block, which holds the exponents of all rows' scales, then the halves of all
/// rows.
struct HalfRow {
  std::int16_t* exponent;
  std::uint16_t* halves;

  KOKKOS_INLINE_FUNCTION static HalfRow of(std::uint8_t* block, int tokens, int t, int channels) {
    auto* exponents = reinterpret_cast<std::int16_t*>(block);
    return {exponents + t, reinterpret_cast<std::uint16_t*>(exponents + tokens) +
                               static_cast<std::size_t>(t) * channels};
  }
  KOKKOS_INLINE_FUNCTION static std::size_t block_bytes(int tokens, int channels) {
    return std::size_t{2} * tokens * (static_cast<std::size_t>(channels) + 1);
  }
};

/// Returns the exponent e with which 2^e |x| rounds to at most 65504, and to at least half of that,
/// for the largest finite magnitude |x| of a row, given as bits. e is at most 126, for numbers next
/// to fp32's smallest, so that 2^-e is a normal number.
KOKKOS_INLINE_FUNCTION int half_exponent(std::uint32_t largest) {
  if (largest == 0) return 0;
  // 65520 and above, in the same binade, round up to the next one.
  const int binade = static_cast<int>((largest + 0x1000u) >> 23) - 127;
  return binade < 15 - 126 ? 126 : 15 - binade;
}

KOKKOS_INLINE_FUNCTION int half_exponent_of_row(const RowMember& team, int n, const float* x) {
  return half_exponent(row_max(team, n, 0u, [=](int c) { return finite_magnitude(x[c]); }));
}

KOKKOS_INLINE_FUNCTION void write_half_row(const RowMember& team, int n, const float* x,
                                           int exponent, const HalfRow& row) {
  row_once(team, [=]() { *row.exponent = static_cast<std::int16_t>(exponent); });
  halves_of_row(team, n, x, power_of_two(exponent), row.halves);
}

KOKKOS_INLINE_FUNCTION void read_half_row(const RowMember& team, int n, const HalfRow& row,
                                          float* x) {
  floats_of_halves(team, n, row.halves, power_of_two(-*row.exponent), x);
}

}  // namespace deltapipe::codec
