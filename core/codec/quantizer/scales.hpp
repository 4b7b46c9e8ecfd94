// SPDX-License-Identifier: BSD-3-Clause
// Wire format of quantisation steps: the upper 16 bits of a float without its sign (8 exponent and
// 8 fraction bits). The range of fp32 suits gradients far below fp16's 6e-8. A step times a
// code below 2^8 is exact in fp32, so that m + code * step has one rounding, fused or not.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/base/numeric/number_formats.hpp"

namespace deltapipe::codec {

KOKKOS_INLINE_FUNCTION float float_of_step(std::uint16_t step) {
  return float_of(static_cast<std::uint32_t>(step) << 15);
}

/// Returns the smallest step of at least `least`; 0 if `least` is below fp32's normal numbers; at
/// most fp32's largest number / levels, so that no level overflows.
KOKKOS_INLINE_FUNCTION std::uint16_t step_at_least(float least, float levels) {
  const std::uint32_t bits = bits_of(least);
  const std::uint32_t largest = bits_of(kMaxFloat / levels) >> 15;
  std::uint32_t step = (bits + 0x7fffu) >> 15;
  step = step < largest ? step : largest;
  return static_cast<std::uint16_t>(bits < 0x00800000u ? 0u : step);
}

/// Returns the smallest step of at least limit / levels, so that |x| <= limit becomes codes of at
/// most `levels`, up to the rounding of the quotient.
KOKKOS_INLINE_FUNCTION std::uint16_t step_of(float limit, float levels) {
  return step_at_least(limit / levels, levels);
}

/// Returns 1/step; 0 for a step of 0.
KOKKOS_INLINE_FUNCTION float inverse_of(float step) {
  return step > 0.0f ? 1.0f / step : 0.0f;
}

/// Returns the integer nearest to x as a float, ties to even; a 0 may have x's sign. |x| must be at
/// most 16384. x may be a product: no compiler fuses it with what follows.
KOKKOS_INLINE_FUNCTION float nearest_integer(float x) {
#if defined(__SSE2__) && !defined(__SSE4_1__)  // no instruction for this rounding
  constexpr float kRound = 12582912.0f;        // 1.5 * 2^23: the sum has no fraction
  return (limited(x, 16384.0f) + kRound) - kRound;
#else
  return std::rint(x);
#endif
}

/// Steps of tiles that a host finds before it uses the first, so that their quotients overlap.
struct StepsTogether {
  static constexpr int kMost = 16;
  std::uint32_t largest = 0;  ///< largest magnitude of all tiles, as bits
  std::uint16_t code[kMost];
  float step[kMost];
  float inverse[kMost];

  /// Sets the step of the i-th tile, whose largest magnitude is given as bits.
  KOKKOS_FORCEINLINE_FUNCTION void set(int i, std::uint32_t largest_of_tile, float levels) {
    largest = largest_of_tile > largest ? largest_of_tile : largest;
    code[i] = step_of(float_of(largest_of_tile), levels);
    step[i] = float_of_step(code[i]);
    inverse[i] = inverse_of(step[i]);
  }
};

/// Calls use(i, first, width) for the i-th tile of n channels. If the width is an
/// integral_constant, compilers know it for whole tiles.
template <class Width, class Use>
KOKKOS_FORCEINLINE_FUNCTION void for_tiles(int n, Width width, const Use& use) {
  int i = 0;
  for (; (i + 1) * width <= n; ++i) use(i, i * width, width);
  if (i * width < n) use(i, i * width, n - i * width);
}

}  // namespace deltapipe::codec
