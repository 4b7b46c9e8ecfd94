// SPDX-License-Identifier: BSD-3-Clause
// 16-bit number formats on 32-bit lanes: the same bits on every backend and instruction set.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/base/numeric/exact_arithmetic.hpp"
#include "core/base/numeric/precision.hpp"
#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe {

KOKKOS_INLINE_FUNCTION std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

KOKKOS_INLINE_FUNCTION float float_of(std::uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;
inline constexpr float kMaxHalf = 65504.0f;
inline constexpr float kMaxBfloat = 3.38953139e38f;
inline constexpr float kMaxFloat = 3.40282347e38f;

/// Returns the bits of |x|, which have the order of the values; 0 for NaN and infinities.
KOKKOS_INLINE_FUNCTION std::uint32_t finite_magnitude(float x) {
  const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  return magnitude & (0u - static_cast<std::uint32_t>(magnitude < kInfinityBits));
}

// Integers, because GCC 12 turns consecutive comparisons of floats into masks in memory.

/// Larger magnitudes become +-limit. NaN becomes +limit, because its sign depends on the processor.
KOKKOS_INLINE_FUNCTION float limited(float x, float limit) {
  const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu, most = bits_of(limit);
  const std::uint32_t signs = magnitude <= kInfinityBits ? 0x80000000u : 0u;
  return float_of((magnitude < most ? magnitude : most) | (bits_of(x) & signs));
}

/// NaN and infinities become 0.
KOKKOS_INLINE_FUNCTION float finite_or_zero(float x) {
  const std::uint32_t bits = bits_of(x);
  return float_of(bits & (0u - static_cast<std::uint32_t>((bits & 0x7fffffffu) < kInfinityBits)));
}

KOKKOS_INLINE_FUNCTION std::uint32_t is_nonfinite(float x) {
  return (bits_of(x) & 0x7fffffffu) >= kInfinityBits ? 1u : 0u;
}

/// NaN becomes 0; infinities and larger magnitudes become +-limit.
KOKKOS_INLINE_FUNCTION float saturate(float x, float limit) {
  const std::uint32_t is_number = (bits_of(x) & 0x7fffffffu) <= kInfinityBits ? 1u : 0u;
  return float_of(bits_of(limited(x, limit)) & (0u - is_number));
}

/// Round to nearest, ties to even; too large becomes infinity, NaN a quiet NaN with the upper
/// payload bits, as F16C does.
KOKKOS_INLINE_FUNCTION std::uint16_t half_of(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 the sum with 0.5 leaves the half's subnormal mantissa in the low bits.
  const std::uint32_t small = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  std::uint32_t half = magnitude < 0x38800000u ? small : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // 65520 and above
  half = magnitude > kInfinityBits ? nan : half;
  return static_cast<std::uint16_t>(sign | half);
}

KOKKOS_INLINE_FUNCTION float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t magnitude = half & 0x7fffu;
  const std::uint32_t shifted = magnitude << 13;
  const std::uint32_t small = bits_of(float_of(bits_of(0.5f) | magnitude) - 0.5f);
  const std::uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
  std::uint32_t bits = magnitude < 0x400u ? small : shifted + 0x38000000u;
  bits = magnitude >= 0x7c00u ? (shifted + 0x70000000u) | quiet : bits;
  return float_of(sign | bits);
}

/// Round to nearest, ties to even; too large becomes infinity, NaN a quiet NaN.
KOKKOS_INLINE_FUNCTION std::uint16_t bfloat_of(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > kInfinityBits ? nan : rounded);
}

KOKKOS_INLINE_FUNCTION float float_of_bfloat(std::uint16_t bfloat) {
  return float_of(static_cast<std::uint32_t>(bfloat) << 16);
}

/// A float as its nearest bf16 (ties away from zero) and the lower half of its bits. joined()
/// restores all values exactly, except that it returns a quiet NaN for NaN.
struct Halves {
  Bf16 rounded;
  std::uint16_t lower;
};

KOKKOS_FORCEINLINE_FUNCTION Halves halves_of(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t quiet = (bits & 0x80000000u) | 0x7fc00000u;
  const std::uint32_t kept = (bits & 0x7fffffffu) > kInfinityBits ? quiet : bits;
  return {static_cast<Bf16>((kept + 0x8000u) >> 16), static_cast<std::uint16_t>(kept)};
}

KOKKOS_FORCEINLINE_FUNCTION float joined(const Halves& halves) {
  // If the lower half was 2^15 or more, the upper one is one more than the float's.
  const std::uint32_t lower = halves.lower;
  return float_of((static_cast<std::uint32_t>(halves.rounded) << 16) + lower -
                  ((lower & 0x8000u) << 1));
}

/// Converts x to To, a floating-point type or Bf16.
template <class To, class From>
KOKKOS_FORCEINLINE_FUNCTION To rounded_to(From x) {
  if constexpr (std::is_same_v<To, Bf16>)
    return bfloat_of(static_cast<float>(x));
  else
    return static_cast<To>(x);
}

}  // namespace deltapipe
