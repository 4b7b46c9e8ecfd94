// SPDX-License-Identifier: BSD-3-Clause
// Steps of a fraction of a group's root mean square. Only the sender computes them: the receiver
// uses the steps in the payload.
#pragma once

#include <cmath>

#include "core/base/parallel/row.hpp"
#include "core/codec/quantizer/scales.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe::codec {

/// Levels on either side of zero of codes in steps of a fraction of the RMS.
inline constexpr float kRmsLevels = 127;

/// 2^-e and 2^e, which scale magnitudes of the size of `largest`, a normal number, to about 1 and
/// back, so that sums of squares neither overflow nor vanish.
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

/// Returns the step of n changes: fraction * RMS, at most kMostOfLargest times the largest change,
/// and at least the step with which kRmsLevels levels reach that change, so that no change is cut.
/// Changes that are not finite do not count.
template <class Change>
KOKKOS_INLINE_FUNCTION std::uint16_t step_of_rms(const RowMember& team, float fraction, int n,
                                                 const Change& change) {
  std::uint32_t largest =
      row_max(team, n, 0u, [=](int c) { return bits_of(change(c)) & 0x7fffffffu; });
  int finite = n;
  if (largest >= kInfinityBits) {
    largest = row_max(team, n, 0u, [=](int c) { return finite_magnitude(change(c)); });
    finite -=
        row_sum<int>(team, n, [=](int c) { return static_cast<int>(is_nonfinite(change(c))); });
  }
  if (largest < 0x00800000u) return 0;  // below fp32's normal numbers
  const Magnitude size = Magnitude::of(largest);
  const float down = size.down;
  const float squares = row_sum<float>(team, n, [=](int c) {
    const float value = float_of(finite_magnitude(change(c))) * down;
    return value * value;
  });
  const float most = static_cast<float>(kMostOfLargest) * float_of(largest);
  float wanted = fraction * (std::sqrt(squares / static_cast<float>(finite)) * size.up);
  wanted = wanted < most ? wanted : most;
  const float least = float_of(largest) / kRmsLevels;
  return step_at_least(wanted > least ? wanted : least, kRmsLevels);
}

}  // namespace deltapipe::codec
