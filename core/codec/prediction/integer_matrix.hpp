// SPDX-License-Identifier: BSD-3-Clause
// C x C matrices of small integers with scales, as they travel: sums of their products with other
// small integers are exact in fp32, in any order and fused or not, so that both ends of a boundary
// find the same bits whichever way their backends multiply matrices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe::codec {

/// Largest magnitude of integers such that no sum of `channels` products with integers up to
/// `other` reaches beyond 2^24, at most 127.
inline int largest_factor(int other, int channels) {
  return std::clamp((1 << 24) / (other * channels), 1, 127);
}

/// Its bytes: kArrays times C floats and then C rows of C integers. Bytes is `std::uint8_t` or
/// `const std::uint8_t`.
template <class Bytes, int kArrays>
struct IntegerMatrix {
  Bytes* bytes;
  int channels;

  template <class T>
  using Like = std::conditional_t<std::is_const_v<Bytes>, const T, T>;

  static std::size_t size(int channels) {
    const std::size_t c = channels;
    return kArrays * sizeof(float) * c + (c * c + 3) / 4 * 4;
  }
  KOKKOS_INLINE_FUNCTION Like<float>* floats(int array) const {
    return reinterpret_cast<Like<float>*>(bytes) + static_cast<std::size_t>(array) * channels;
  }
  KOKKOS_INLINE_FUNCTION Like<std::int8_t>* row(int i) const {
    return reinterpret_cast<Like<std::int8_t>*>(floats(kArrays)) +
           static_cast<std::size_t>(i) * channels;
  }
};

}  // namespace deltapipe::codec
