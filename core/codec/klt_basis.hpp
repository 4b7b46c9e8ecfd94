// SPDX-License-Identifier: BSD-3-Clause
// A basis of the channels in which a row's changes travel, as it travels itself. With q the codes
// of the row's components in steps of D, the changes are
//
//   r_j = (sum over i of q_i w_ji) (D t_j)
//
// q and w are integers so small that every sum of their products is exact in fp32, in any order and
// fused or not: whichever way a backend multiplies matrices, both ends see the same bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/base/kokkos_compat.hpp"

namespace deltapipe::codec {

/// Largest magnitude of q that a byte says.
inline constexpr int kLargestLevel = 128;

/// Largest magnitude of w: no sum of C products reaches beyond 2^24.
inline int largest_basis_value(int channels) {
  return std::clamp((1 << 24) / (kLargestLevel * channels), 1, 127);
}

/// Arrays of a basis in its bytes: C floats t and then w, C rows (of channel j) of C bytes, those
/// of the components with the largest squares first. Bytes is `std::uint8_t` or
/// `const std::uint8_t`.
template <class Bytes>
struct KltBasis {
  Bytes* bytes;
  int channels;

  template <class T>
  using Like = std::conditional_t<std::is_const_v<Bytes>, const T, T>;

  static std::size_t size(int channels) {
    const std::size_t c = channels;
    return sizeof(float) * c + (c * c + 3) / 4 * 4;
  }
  KOKKOS_INLINE_FUNCTION Like<float>* scale() const {
    return reinterpret_cast<Like<float>*>(bytes);
  }
  KOKKOS_INLINE_FUNCTION Like<std::int8_t>* values_of(int j) const {
    return reinterpret_cast<Like<std::int8_t>*>(scale() + channels) +
           static_cast<std::size_t>(j) * channels;
  }
};

}  // namespace deltapipe::codec
