// SPDX-License-Identifier: BSD-3-Clause
// A linear map of memories that predicts how activations have drifted, as it travels, and how it is
// applied. With m a row of memories,
//
//   v_i = (m_i - centre_i) gain_i,   s = max|v_i| / L,   u_i = rint(v_i / s)
//   d_j = shift_j + (sum over i of u_i w_ij) (s scale_j),   p_j = m_j + f d_j
//
// f is the sample's own: its memory may be older or younger than those that the map was fitted to.
//
// u and w are integers so small that every sum of their products is exact in fp32, in any order and
// fused or not: whichever way a backend multiplies matrices, both ends predict the same bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/number_formats.hpp"
#include "core/base/row.hpp"

namespace deltapipe::codec {

/// Largest magnitude of w.
inline constexpr int kLargestWeight = 127;

/// L, the largest magnitude of u: no sum of C products reaches 2^24.
inline int largest_input(int channels) {
  return std::clamp((1 << 24) / (kLargestWeight * channels), 1, 127);
}

/// Arrays of a map in its bytes: four of C floats and then w, C rows (from channel i) of C bytes.
/// Bytes is `std::uint8_t` or `const std::uint8_t`.
template <class Bytes>
struct DriftMap {
  Bytes* bytes;
  int channels;

  template <class T>
  using Like = std::conditional_t<std::is_const_v<Bytes>, const T, T>;

  static std::size_t size(int channels) {
    const std::size_t c = channels;
    return 4 * sizeof(float) * c + (c * c + 3) / 4 * 4;
  }
  KOKKOS_INLINE_FUNCTION Like<float>* floats(int array) const {
    return reinterpret_cast<Like<float>*>(bytes) + static_cast<std::size_t>(array) * channels;
  }
  KOKKOS_INLINE_FUNCTION Like<float>* centre() const { return floats(0); }
  KOKKOS_INLINE_FUNCTION Like<float>* gain() const { return floats(1); }
  KOKKOS_INLINE_FUNCTION Like<float>* scale() const { return floats(2); }
  KOKKOS_INLINE_FUNCTION Like<float>* shift() const { return floats(3); }
  KOKKOS_INLINE_FUNCTION Like<std::int8_t>* weights() const {
    return reinterpret_cast<Like<std::int8_t>*>(floats(4));
  }
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
