// SPDX-License-Identifier: BSD-3-Clause
// Codes of b bits of values that share a scale s. With the largest |x| = a:
//   b >= 3: x^ = s c,        c = rint(x / s),  |c| <= L = 2^(b-1) - 1
//   b = 2:  x^ = s c,        c in {-3, -1, 1, 3}, the nearest
//   b = 1:  x^ = s sign(x),  s >= mean |x|
// With more than four bits s >= a / L, so that no value is clipped. With two to four bits s has the
// least squared error of several: groups of gradients have few large values, and steps that reach
// them are too coarse for the others. Error feedback sends later what is clipped. s is rounded up
// to 16 bits (core/codec/quantizer). Errors are kept in units of s.
#pragma once

#include <cmath>
#include <cstdint>

#include "comm/replicas/part_errors.hpp"
#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"
#include "core/codec/quantizer/scales.hpp"

namespace deltapipe {

struct CodeLevels {
  /// Scale of values that are not all finite. It decodes to NaN.
  static constexpr std::uint16_t kScaleNaN = 0xffff;

  /// Returns the scale to encode with; 0 for kScaleNaN.
  KOKKOS_INLINE_FUNCTION static float scale_of(std::uint16_t wire) {
    return wire == kScaleNaN ? 0.0f : codec::float_of_step(wire);
  }

  int bits;

  /// Largest code; values of codes 0 ... 2 * middle() are symmetric.
  KOKKOS_INLINE_FUNCTION int largest() const {
    return bits > 2 ? (1 << bits) - 2 : (1 << bits) - 1;
  }
  /// Code of 0, with three bits or more.
  KOKKOS_INLINE_FUNCTION int middle() const { return largest() / 2; }
  KOKKOS_INLINE_FUNCTION float value(int code, float scale) const {
    const int level = bits > 2 ? code - middle() : 2 * code - largest();
    return static_cast<float>(level) * scale;
  }
  KOKKOS_INLINE_FUNCTION int code(float x, float inverse) const {
    const float q = limited(x * inverse, 16384.0f);
    const float at = bits > 2 ? codec::nearest_integer(q) + static_cast<float>(middle())
                              : std::floor(0.5f * (q + static_cast<float>(largest() + 1)));
    const int code = static_cast<int>(at);
    return code < 0 ? 0 : code > largest() ? largest() : code;
  }
  /// Returns the scale of n values x as it travels, the same in all threads of the team.
  template <class Member>
  KOKKOS_INLINE_FUNCTION std::uint16_t scale(const Member& team, int n, const float* x) const {
    const bool is_finite = row_max(team, n, 0u, [=](int i) { return is_nonfinite(x[i]); }) == 0u;
    if (!is_finite) return kScaleNaN;
    if (bits == 1) {
      // Not the sum divided by n: it can overflow.
      const float part = 1.0f / static_cast<float>(n);
      const float mean =
          row_sum<float>(team, n, [=](int i) { return float_of(finite_magnitude(x[i])) * part; });
      return codec::step_at_least(mean, 1.0f);
    }
    const float most =
        float_of(row_max(team, n, 0u, [=](int i) { return finite_magnitude(x[i]); }));
    if (bits > kMostFitted || most < kMinNormal) return codec::step_of(most, reach());
    return codec::step_at_least(most * fitted_scale(team, n, x, 1.0f / most), reach());
  }

 private:
  static constexpr int kMostFitted = 4;
  static constexpr float kMinNormal = 1.17549435e-38f;

  /// Values of at most this many scales differ from a code's value by at most half a step.
  KOKKOS_INLINE_FUNCTION float reach() const {
    return bits == 2 ? 4.0f : static_cast<float>(middle());
  }
  /// Scale with the least squared error for normal values of variance 1 (J. Max, Quantizing for
  /// minimum distortion, 1960).
  KOKKOS_INLINE_FUNCTION float step_for_normal() const {
    return bits == 2 ? 0.4978f : bits == 3 ? 0.6508f : 0.3534f;
  }
  /// Returns the best scale of values x * unit, whose largest magnitude is 1: the one that reaches
  /// it, or a finer one. These are steps for normal values, which are doubled in two steps because
  /// others have more large values.
  template <class Member>
  KOKKOS_INLINE_FUNCTION float fitted_scale(const Member& team, int n, const float* x,
                                            float unit) const {
    constexpr int kSteps = 7;
    constexpr float kRoot = 1.41421356f;
    const auto error2 = [=, *this](float step) {
      const float inverse = 1.0f / step;
      return row_sum<float>(team, n, [=, *this](int i) {
        const float y = x[i] * unit, left = y - value(code(y, inverse), step);
        return left * left;
      });
    };
    const float part = 1.0f / static_cast<float>(n);
    const float mean2 =
        row_sum<float>(team, n, [=](int i) { return (x[i] * unit) * (x[i] * unit) * part; });
    const float coarsest = 1.0f / reach();
    float best = coarsest, least = error2(coarsest);
    float step = step_for_normal() / kRoot * std::sqrt(mean2);
    for (int k = 0; k < kSteps && step < coarsest; ++k, step *= kRoot)
      if (const float error = error2(step); error < least) {
        least = error;
        best = step;
      }
    return best;
  }
};

/// Scales travel byte by byte: what precedes them in a payload need not be aligned.
KOKKOS_INLINE_FUNCTION void store_scale(std::uint8_t* to, std::uint16_t scale) {
  to[0] = static_cast<std::uint8_t>(scale & 0xffu);
  to[1] = static_cast<std::uint8_t>(scale >> 8);
}
KOKKOS_INLINE_FUNCTION std::uint16_t stored_scale(const std::uint8_t* from) {
  return static_cast<std::uint16_t>(from[0] | from[1] << 8);
}

/// Returns the error of value i of a group.
KOKKOS_INLINE_FUNCTION float error_of(const PartErrors::Place& group, int i, float scale) {
  return float_of_half(group.error[i]) * scale;
}
/// Stores the error of value i, in units of the new scale.
KOKKOS_INLINE_FUNCTION void store_error(const PartErrors::Place& group, int i, float in_units) {
  group.error[i] = half_of(saturate(in_units, kMaxHalf));
}

/// Stores what the encoding of a group leaves: its scale in the payload and with its errors, and
/// the sums of their squares and of those of its values.
KOKKOS_INLINE_FUNCTION void store_group(const RowMember& team, const PartErrors::Place& group,
                                        std::uint8_t* payload, std::uint16_t scale, float error2,
                                        float signal2) {
  row_once(team, [=]() {
    store_scale(payload, scale);
    *group.scale = scale == CodeLevels::kScaleNaN ? std::uint16_t{0} : scale;
    group.squares[0] = error2;
    group.squares[1] = signal2;
  });
}

template <class T>
KOKKOS_INLINE_FUNCTION T* scratch_of(const RowMember& team, int count) {
  return static_cast<T*>(team.team_scratch(0).get_shmem(sizeof(T) * count));
}

}  // namespace deltapipe
