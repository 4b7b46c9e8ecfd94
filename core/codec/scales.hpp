// SPDX-License-Identifier: BSD-3-Clause
// Quantisation steps as they travel: the upper 16 bits of a float without its sign (8 exponent and
// 8 fraction bits). The range of fp32 suits gradients far below fp16's 6e-8, and a step times a
// code below 2^8 is exact in fp32, so that m + code * step has one rounding, fused or not.
#pragma once

#include <cstdint>

#include "core/base/number_formats.hpp"

namespace deltapipe::codec {

KOKKOS_INLINE_FUNCTION float float_of_step(std::uint16_t step) {
  return float_of(static_cast<std::uint32_t>(step) << 15);
}

/// The smallest step of at least `least`: 0 when `least` is below fp32's normal numbers; at most
/// fp32's largest number / levels, so that no level overflows.
KOKKOS_INLINE_FUNCTION std::uint16_t step_at_least(float least, float levels) {
  const std::uint32_t bits = bits_of(least);
  const std::uint32_t largest = bits_of(kMaxFloat / levels) >> 15;
  std::uint32_t step = (bits + 0x7fffu) >> 15;
  step = step < largest ? step : largest;
  return static_cast<std::uint16_t>(bits < 0x00800000u ? 0u : step);
}

/// The smallest step of at least limit/levels; so |x| <= limit becomes codes of at most levels, up
/// to the rounding of the quotient.
KOKKOS_INLINE_FUNCTION std::uint16_t step_of(float limit, float levels) {
  return step_at_least(limit / levels, levels);
}

/// 1/step; 0 for a step of 0.
KOKKOS_INLINE_FUNCTION float inverse_of(float step) {
  return step > 0.0f ? 1.0f / step : 0.0f;
}

}  // namespace deltapipe::codec
