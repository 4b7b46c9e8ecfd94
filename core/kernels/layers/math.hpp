// SPDX-License-Identifier: BSD-3-Clause
// exp, the logistic function and the normal distribution in a form that compilers vectorise: no
// branches, no library calls.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe {

/// Returns e^x within 1.1 ulp for x in [-87, 88]; 0 below, infinity above, NaN for NaN. Nothing is
/// clamped to tiny numbers: products with them would be denormal, which is a hundred times as slow.
/// Uses the magic-number range reduction of Cody and Waite, then the polynomial of degree 6 with
/// the least relative error (3e-9 before rounding).
KOKKOS_FORCEINLINE_FUNCTION float vector_exp(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * kLog2E + kMagic;
  const float n = shifted - kMagic;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.381453825e-3f;
  p = p * r + 8.368745446e-3f;
  p = p * r + 4.166838899e-2f;
  p = p * r + 1.666652113e-1f;
  p = p * r + 4.999999404e-1f;
  p = p * r * r + r + 1.0f;
  union {
    float value;
    std::uint32_t bits;
  } scale;
  scale.value = shifted;
  scale.bits = (scale.bits << 23) + 0x3f800000u;  // the low bits of `shifted` hold n
  const float value = x > 88.0f ? INFINITY : p * scale.value;
  return x < -87.0f ? 0.0f : value;
}

KOKKOS_FORCEINLINE_FUNCTION double vector_exp(double x) {
  return std::exp(x);
}

/// Returns 1 / (1 + e^-x).
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real logistic(Real x) {
  return Real(1) / (Real(1) + vector_exp(-x));
}

/// Returns the normal distribution's value, erfc(-x / sqrt(2)) / 2, within a relative error of
/// 1.5e-6 above x = -7 and of 6e-6 down to -12.5, where the rounding of x^2 shows; 0 below -13.2.
/// The tail is a polynomial in 1 / (1 + 0.29 |x|), of degree 8 with the least relative error
/// (6e-8), times exp(-x^2 / 2).
KOKKOS_FORCEINLINE_FUNCTION float normal_distribution(float x) {
  const float t = 1.0f / (1.0f + 0.29f * std::abs(x));
  float p = 3.8972077e-2f;
  p = p * t - 1.9163540e-1f;
  p = p * t + 3.0488361e-1f;
  p = p * t - 1.5138604e-1f;
  p = p * t + 1.8709572e-1f;
  p = p * t + 7.5592000e-2f;
  p = p * t + 1.2135049e-1f;
  p = p * t + 1.1510089e-1f;
  p = p * t + 2.6625728e-5f;
  const float tail = p * vector_exp(-0.5f * x * x);
  return x > 0.0f ? 1.0f - tail : tail;
}

KOKKOS_FORCEINLINE_FUNCTION double normal_distribution(double x) {
  return 0.5 * std::erfc(-x * 0.70710678118654752440);
}

}  // namespace deltapipe
