// SPDX-License-Identifier: BSD-3-Clause
// Division of the buckets of a sum over replicas into chunks, and of each chunk into parts. Replica
// r adds up part r of every chunk.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "core/stage/parameters.hpp"

namespace deltapipe {

/// Parts begin at multiples of this many elements, the smallest group that shares a scale.
inline constexpr std::size_t kSumGroup = 512;
/// Returns the number of groups that hold this many elements.
constexpr std::size_t groups_of(std::size_t elements) {
  return (elements + kSumGroup - 1) / kSumGroup;
}
/// Returns the elements of these groups, the unused ones of the last group included.
constexpr std::size_t in_groups(std::size_t elements) {
  return groups_of(elements) * kSumGroup;
}

/// Elements [begin, begin + size) of a bucket.
struct SumRange {
  std::size_t begin = 0;
  std::size_t size = 0;
};

struct SumChunk {
  std::size_t bucket = 0;  ///< position in the list of buckets
  SumRange range;
  std::size_t part_size = 0;  ///< a multiple of kSumGroup; the last parts may be shorter or empty

  SumRange part(int replica) const {
    const std::size_t first = std::min(range.size, part_size * static_cast<std::size_t>(replica));
    return {range.begin + first, std::min(part_size, range.size - first)};
  }
  /// Returns the sizes that parts have: that of all but the last ones, and that of the last one
  /// that is not empty.
  std::array<std::size_t, 2> part_sizes() const {
    return {std::min(part_size, range.size), range.size % part_size};
  }
};

/// Returns the elements of the gradients of each bucket of a stage.
std::vector<std::size_t> bucket_sizes(const ParameterArena<float>& parameters);
/// Returns the size of the one bucket of a stage's statistics; empty: no statistics.
std::vector<std::size_t> statistic_sizes(const ParameterArena<float>& parameters);

/// Returns the chunks of buckets of these sizes, in the order of their exchange. A chunk's messages
/// are large enough that headers do not count, and small enough that sending, adding and receiving
/// of several chunks overlap.
std::vector<SumChunk> sum_chunks(std::span<const std::size_t> bucket_sizes, int replicas);

/// Returns the elements of the largest part.
std::size_t largest_part(std::span<const SumChunk> chunks);

}  // namespace deltapipe
