// SPDX-License-Identifier: BSD-3-Clause
// IEEE binary16 and bfloat16 as their 16 bits, to and from fp32 on the host. Narrowing rounds to
// nearest even; NaN stays NaN, overflow becomes infinity, subnormals are kept.
#pragma once

#include <bit>
#include <cstdint>

namespace deltapipe {

inline float bf16_to_fp32(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t fp32_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  // A NaN whose payload sits in the lower half only would be cut to infinity: set its quiet bit.
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

inline float fp16_to_fp32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7FFFU;
  if (magnitude >= 0x7C00U) {  // infinity or NaN
    const std::uint32_t quiet = magnitude > 0x7C00U ? 0x00400000U : 0U;
    return std::bit_cast<float>(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13) | quiet);
  }
  // The exponent biases differ by 112; the product is exact, also for subnormals.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign);
}

inline std::uint16_t fp32_to_fp16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  }
  if (magnitude >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // >= 2^16
  if (magnitude < 0x38800000U) {  // below 2^-14: subnormal, in units of 2^-24
    // Adding 0.5 = 2^23 units of 2^-24 lets the addition do the rounding.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

}  // namespace deltapipe
