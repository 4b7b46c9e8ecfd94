// SPDX-License-Identifier: BSD-3-Clause
// A linear map of memories that predicts how activations have drifted, as it travels, and how it is
// applied. With m a row of memories,
//
//   v_i = (m_i - centre_i) gain_i,   s = max|v_i| / L,   u_i = rint(v_i / s)
//   d_j = shift_j + (sum over i of u_i w_ij) (s scale_j),   p_j = m_j + f d_j
//
// f is the sample's own: its memory may be older or younger than those that the map was fitted to.
//
// u and w are integers so small that both ends predict the same bits (integer_matrix.hpp).
#pragma once

#include <cmath>
#include <cstdint>

#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"
#include "core/codec/prediction/integer_matrix.hpp"

namespace deltapipe::codec {

/// Largest magnitude of w.
inline constexpr int kLargestWeight = 127;

/// L, the largest magnitude of u.
inline int largest_input(int channels) {
  return largest_factor(kLargestWeight, channels);
}

/// Four arrays of C floats and then w, row i from channel i.
template <class Bytes>
struct DriftMap : IntegerMatrix<Bytes, 4> {
  KOKKOS_INLINE_FUNCTION auto* centre() const { return this->floats(0); }
  KOKKOS_INLINE_FUNCTION auto* gain() const { return this->floats(1); }
  KOKKOS_INLINE_FUNCTION auto* scale() const { return this->floats(2); }
  KOKKOS_INLINE_FUNCTION auto* shift() const { return this->floats(3); }
};

/// u of a row of memories, as floats, and s; all threads of the team return the same s. Zeros for
/// a row whose s would be below fp32's normal numbers.
KOKKOS_INLINE_FUNCTION float quantize_inputs(const RowMember& team,
                                             const DriftMap<const std::uint8_t>& map, float largest,
                                             const float* m, float* u) {
  const int n = map.channels;
  const float* centre = map.centre();
  const float* gain = map.gain();
  const auto value = [=](int c) { return saturate((m[c] - centre[c]) * gain[c], kMaxFloat); };
  const std::uint32_t most =
      row_max(team, n, 0u, [=](int c) { return bits_of(value(c)) & 0x7fffffffu; });
  const float s = float_of(most) / largest;
  const float inverse = bits_of(s) < 0x00800000u ? 0.0f : 1.0f / s;
  row_for_synced(team, n, [=](int c) { u[c] = saturate(std::rint(value(c) * inverse), largest); });
  return s;
}

/// d of a value, from the sum of products. The one product that a sum could be fused with is exact
/// in double precision.
KOKKOS_INLINE_FUNCTION float predicted_change(float sum, float s, float scale, float shift) {
  const float step = s * scale;
  const double change =
      static_cast<double>(shift) + static_cast<double>(sum) * static_cast<double>(step);
  return saturate(static_cast<float>(change), kMaxFloat);
}

/// p of a value; the product is exact in double precision.
KOKKOS_INLINE_FUNCTION float predicted_value(float m, float factor, float change) {
  const double p =
      static_cast<double>(m) + static_cast<double>(factor) * static_cast<double>(change);
  return saturate(static_cast<float>(p), kMaxFloat);
}

/// Largest f. They travel as steps do (scales.hpp).
inline constexpr float kLargestFactor = 8;

}  // namespace deltapipe::codec
