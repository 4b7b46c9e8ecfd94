// SPDX-License-Identifier: BSD-3-Clause
// Hashes of device memory, to tell whether two ranks hold the same bits.
#pragma once

#include <cstdint>

#include "core/base/kernel.hpp"
#include "core/base/views.hpp"

namespace deltapipe {

inline constexpr std::int64_t kHashTile = 4096;

/// What words [first, end) add to a hash, which is a sum over all words: their order of addition
/// does not matter, and any change of one word changes it, since the factors are odd.
KOKKOS_INLINE_FUNCTION std::uint64_t hash_part(const std::uint32_t* words, std::int64_t first,
                                               std::int64_t end) {
  std::uint64_t sum = 0;
  for (std::int64_t i = first; i < end; ++i)
    sum += (std::uint64_t{words[i]} + 1) *
           ((static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ull | 1);
  return sum;
}

/// hash_B(b) := hash of the `bytes` bytes, a multiple of 4, from pool + offset_B(b) on, a multiple
/// of 4 as well. Asynchronous on exec.
inline void hash_ranges(const ExecSpace& exec, const std::uint8_t* pool,
                        const VectorRef<const std::uint64_t>& offset_B, std::size_t bytes,
                        const VectorRef<std::uint64_t>& hash_B) {
  const auto words = static_cast<std::int64_t>(bytes / 4);
  const std::int64_t tiles = (words + kHashTile - 1) / kHashTile;
  Kokkos::deep_copy(exec, hash_B, std::uint64_t{0});
  for_range(
      "deltapipe::ContentHash::ranges", exec, tiles * static_cast<std::int64_t>(hash_B.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) {
        const std::int64_t b = i / tiles;
        const std::int64_t first = i % tiles * kHashTile;
        const std::int64_t end = first + kHashTile < words ? first + kHashTile : words;
        const auto* const range = reinterpret_cast<const std::uint32_t*>(pool + offset_B(b));
        atomic_add(&hash_B(b), hash_part(range, first, end));
      });
}

}  // namespace deltapipe
