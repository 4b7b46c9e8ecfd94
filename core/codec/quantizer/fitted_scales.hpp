// SPDX-License-Identifier: BSD-3-Clause
// Steps of a group of values that follow from all of them, not from the largest alone. Only the
// sender finds steps: the receiver takes those that travel.
#pragma once

#include <cmath>

#include "core/base/parallel/row.hpp"
#include "core/codec/quantizer/scales.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe::codec {

/// Changes that share a step; levels as in RowFormat.
struct FittedScale {
  ScaleRule rule;
  float rms_step;
  float negative_levels;
  float positive_levels;
  float low;
  float high;
};

/// Fractions of the step for the largest value that are tried for the least square error.
inline constexpr int kFractions = 5;
KOKKOS_INLINE_FUNCTION float fraction_of_max(int i) {
  return i == 0 ? 1.0f : i == 1 ? 0.85f : i == 2 ? 0.7f : i == 3 ? 0.6f : 0.5f;
}

/// 2^-e and 2^e that take magnitudes of the size of `largest`, a normal number, to about 1, so that
/// sums of squares neither overflow nor vanish.
struct Magnitude {
  float down;
  float up;

  KOKKOS_INLINE_FUNCTION static Magnitude of(std::uint32_t largest) {
    std::uint32_t exponent = largest >> 23;
    exponent = exponent > 1 ? exponent : 1;
    exponent = exponent < 253 ? exponent : 253;
    return {float_of((254 - exponent) << 23), float_of(exponent << 23)};
  }
};

/// The step f * RMS, at most kMostOfLargest times the largest value, at least the one with which
/// 127 levels reach it: nothing is cut.
template <class Change>
KOKKOS_INLINE_FUNCTION std::uint16_t step_of_rms(const RowMember& team, const FittedScale& rule,
                                                 int n, int finite, std::uint32_t largest,
                                                 const Change& change) {
  const Magnitude size = Magnitude::of(largest);
  const float down = size.down;
  const float squares = row_sum<float>(team, n, [=](int c) {
    const float value = float_of(finite_magnitude(change(c))) * down;
    return value * value;
  });
  const float most = static_cast<float>(kMostOfLargest) * float_of(largest);
  float wanted = rule.rms_step * (std::sqrt(squares / static_cast<float>(finite)) * size.up);
  wanted = wanted < most ? wanted : most;
  const float least = float_of(largest) / rule.negative_levels;
  return step_at_least(wanted > least ? wanted : least, rule.negative_levels);
}

/// Square error of rounding to nearest with a step, in units of the magnitude's square.
template <class Change>
KOKKOS_INLINE_FUNCTION float square_error(const RowMember& team, const FittedScale& rule, int n,
                                          std::uint16_t step, float down, const Change& change) {
  const float width = float_of_step(step);
  const float inverse = inverse_of(width);
  const float low = rule.low;
  const float high = rule.high;
  return row_sum<float>(team, n, [=](int c) {
    float value = change(c);
    value = is_nonfinite(value) != 0 ? 0.0f : value;
    float level = std::rint(value * inverse);
    level = level < high ? level : high;
    level = level > low ? level : low;
    const float error = (value - level * width) * down;
    return error * error;
  });
}

/// The fraction of the largest value's step that has the least square error; of equals the
/// largest.
template <class Change>
KOKKOS_INLINE_FUNCTION std::uint16_t step_of_least_error(const RowMember& team,
                                                         const FittedScale& rule, int n,
                                                         std::uint32_t largest,
                                                         const Change& change) {
  const float down = Magnitude::of(largest).down;
  const float whole = float_of(largest) / rule.positive_levels;
  const float wide = float_of(largest) / rule.negative_levels;
  const float largest_step = whole > wide ? whole : wide;
  std::uint16_t best = 0;
  float least = 0;
  for (int i = 0; i < kFractions; ++i) {
    const std::uint16_t step =
        step_at_least(fraction_of_max(i) * largest_step, rule.negative_levels);
    const float error = square_error(team, rule, n, step, down, change);
    const bool better = i == 0 || error < least;
    best = better ? step : best;
    least = better ? error : least;
  }
  return best;
}

/// The step of n changes; changes that are not finite do not count.
template <class Change>
KOKKOS_INLINE_FUNCTION std::uint16_t fitted_step(const RowMember& team, const FittedScale& rule,
                                                 int n, const Change& change) {
  std::uint32_t largest =
      row_max(team, n, 0u, [=](int c) { return bits_of(change(c)) & 0x7fffffffu; });
  int finite = n;
  if (largest >= kInfinityBits) {
    largest = row_max(team, n, 0u, [=](int c) { return finite_magnitude(change(c)); });
    finite -=
        row_sum<int>(team, n, [=](int c) { return static_cast<int>(is_nonfinite(change(c))); });
  }
  if (largest < 0x00800000u) return 0;  // below fp32's normal numbers
  return rule.rule == ScaleRule::rms ? step_of_rms(team, rule, n, finite, largest, change)
                                     : step_of_least_error(team, rule, n, largest, change);
}

}  // namespace deltapipe::codec
