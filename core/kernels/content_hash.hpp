// SPDX-License-Identifier: BSD-3-Clause
// Hashes of device memory, to compare the bits of two ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/parallel/kernel.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

inline constexpr std::int64_t kHashTile = 4096;

/// Returns the contribution of word i to a hash.
KOKKOS_FORCEINLINE_FUNCTION std::uint64_t hash_term(std::uint32_t word, std::int64_t i) {
  return (std::uint64_t{word} + 1) *
         ((static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ull | 1);
}

/// Returns the contribution of words [first, end) to a hash. A hash is a sum over all words, so
/// that their order does not matter. Any change of one word changes it, because the factors are
/// odd.
KOKKOS_INLINE_FUNCTION std::uint64_t hash_part(const std::uint32_t* words, std::int64_t first,
                                               std::int64_t end) {
  std::uint64_t sum = 0;
  for (std::int64_t i = first; i < end; ++i) sum += hash_term(words[i], i);
  return sum;
}

/// hash_B(b) := hash of the `bytes` bytes that begin at pool + offset_B(b). `bytes` and the offsets
/// are multiples of 4. Asynchronous on exec.
inline void hash_ranges(const ExecSpace& exec, const std::uint8_t* pool,
                        const VectorRef<const std::uint64_t>& offset_B, std::size_t bytes,
                        const VectorRef<std::uint64_t>& hash_B) {
  const auto words = static_cast<std::int64_t>(bytes / 4);
  const std::int64_t tiles = (words + kHashTile - 1) / kHashTile;
  Kokkos::deep_copy(exec, hash_B, std::uint64_t{0});
  for_range(
      "deltapipe::ContentHash::ranges", exec, tiles * static_cast<std::int64_t>(hash_B.extent(0)),
      DELTAPIPE_LAMBDA(std::int64_t i) {
        const std::int64_t b = i / tiles;
        const std::int64_t first = i % tiles * kHashTile;
        const std::int64_t end = first + kHashTile < words ? first + kHashTile : words;
        const auto* const range = reinterpret_cast<const std::uint32_t*>(pool + offset_B(b));
        atomic_add(&hash_B(b), hash_part(range, first, end));
      });
}

/// hash(0) := hash of `size` bytes, with the last word padded with zeros; `bytes` is a multiple of
/// 4. Asynchronous on exec. On devices neighbouring threads read neighbouring words.
inline void hash_bytes(const ExecSpace& exec, const std::uint8_t* bytes, std::size_t size,
                       const VectorRef<std::uint64_t>& hash) {
  constexpr std::int64_t kShare = kHostExecution ? kHashTile : 32;  // words of a thread
  const auto words = static_cast<std::int64_t>(size / 4);
  const std::int64_t shares = words / kShare + 1;
  Kokkos::deep_copy(exec, hash, std::uint64_t{0});
  for_range(
      "deltapipe::ContentHash::bytes", exec, shares, DELTAPIPE_LAMBDA(std::int64_t share) {
        const auto* const word = reinterpret_cast<const std::uint32_t*>(bytes);
        std::uint64_t sum = 0;
        if (kHostExecution) {
          const std::int64_t first = share * kShare;
          sum = hash_part(word, first, first + kShare < words ? first + kShare : words);
        } else {
          for (std::int64_t i = share; i < words; i += shares) sum += hash_term(word[i], i);
        }
        if (share == 0 && size % 4 != 0) {
          std::uint32_t last = 0;
          for (std::size_t i = 0; i < size % 4; ++i)
            last |= std::uint32_t{bytes[4 * words + i]} << (8 * i);
          sum += hash_term(last, words);
        }
        atomic_add(&hash(0), sum);
      });
}

}  // namespace deltapipe
