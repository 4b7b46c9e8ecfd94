// SPDX-License-Identifier: BSD-3-Clause
// The k values of largest magnitude of groups of values (TopK), as ascending positions: exact, with
// ties going to the lowest positions, and without a sort. The bits of |x| have the order of the
// magnitudes: histograms of their upper 11, next 10 and last 10 bits (a radix selection) give the
// k-th largest. Only candidates take part: values not below a bound that some of the values
// suggest. If they prove too few, all values do.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe::codec {

/// Returns |x| as bits, which have the order of the values; 0 for NaN, the largest number for
/// infinities.
KOKKOS_INLINE_FUNCTION std::uint32_t magnitude_key(float x) {
  const std::uint32_t magnitude = bits_of(x) & 0x7fffffffu;
  const std::uint32_t number = magnitude > kInfinityBits ? 0u : magnitude;
  return number < kInfinityBits ? number : kInfinityBits - 1;
}

/// Returns the number of values in a part of a sample's `size` values; at least 1 if there are any.
KOKKOS_INLINE_FUNCTION std::uint32_t count_of_part(double part, std::uint32_t size) {
  const double share = std::round(part * static_cast<double>(size));
  const std::uint32_t k = share < 1 ? 1u : static_cast<std::uint32_t>(share);
  return k < size ? k : size;
}

/// A group of values to choose from.
struct TopKGroup {
  std::uint64_t first;  ///< place of its first value among all values
  std::uint32_t size;   ///< number of values, below 2^31
  std::uint32_t most;   ///< k, up to size
};

/// Positions in groups: group g has count_G[g] ascending ones from position[g * stride] on.
struct Positions {
  std::uint32_t* position;
  std::uint32_t* count_G;
  std::size_t stride;

  KOKKOS_INLINE_FUNCTION std::uint32_t* of(int group) const { return position + group * stride; }
};

/// Positions of up to `most` values in each of several groups.
class PositionLists {
 public:
  PositionLists(int groups, std::size_t most)
      : positions_(uninitialized("deltapipe::TopK::positions"), groups * most),
        count_G_("deltapipe::TopK::counts", groups),
        most_(most) {}
  Positions view() const { return {positions_.data(), count_G_.data(), most_}; }
  std::size_t memory_bytes() const {
    return sizeof(std::uint32_t) * (positions_.size() + count_G_.size());
  }

 private:
  Vector<std::uint32_t> positions_;
  Vector<std::uint32_t> count_G_;
  std::size_t most_;
};

namespace selection {

/// State of a group while the bits of its k-th largest key are found.
struct GroupState {
  std::uint32_t threshold;  ///< bits that are known
  std::uint32_t wanted;     ///< number of values with these bits that are among the k
  std::uint32_t least;      ///< smallest key of candidates
  std::uint32_t again;      ///< 1: there were too few candidates
};

/// Counts of the candidates in a chunk of a group's values.
struct ChunkCounts {
  std::uint32_t candidates;
  std::uint32_t undecided;  ///< equal to the k-th largest in the upper bits
  std::uint32_t larger;     ///< larger than the k-th largest
  std::uint32_t equal;      ///< equal to the k-th largest
  std::uint32_t ties;       ///< the first of these, which are chosen
  std::uint32_t place;      ///< place of the first chosen position
  std::uint32_t nonfinite;
  std::uint32_t largest;  ///< largest finite magnitude
};

}  // namespace selection

class TopKSelection {
 public:
  /// For up to max_groups groups of up to max_size values. With no groups, it holds nothing.
  TopKSelection(int max_groups, std::size_t max_size);

  /// Finds, for each of the groups (in device memory), the positions of the min(k, number of values
  /// that are neither zero nor NaN) values of largest magnitude; an infinity counts as the largest
  /// number. Unless it is null, chosen_values receives their values in the order of the positions.
  /// Asynchronous on exec.
  void select(const ExecSpace& exec, int groups, const TopKGroup* group_G, const float* values,
              const Positions& chosen, float* chosen_values = nullptr);
  /// Returns the number of NaN and infinities of each group in the last selection.
  const std::uint32_t* nonfinite_G() const { return nonfinite_G_.data(); }
  /// Returns the bits of the largest finite magnitude among each group's candidates in the last
  /// selection. This is the largest of all its values, unless it chose only infinities.
  const std::uint32_t* largest_G() const { return largest_G_.data(); }

  std::size_t memory_bytes() const;

 private:
  std::size_t max_size_;
  int max_chunks_;                      ///< chunks of a group
  Vector<std::uint32_t> histogram_GB_;  ///< counts of a group's keys by their bits
  Vector<selection::GroupState> state_G_;
  Vector<std::uint16_t> candidates_;  ///< places in their chunk of values that may be among the k
  Vector<std::uint32_t> keys_;        ///< bits of the candidates
  Vector<std::uint16_t> undecided_;   ///< those that lower bits decide
  Vector<selection::ChunkCounts> counts_GC_;
  Vector<std::uint32_t> nonfinite_G_;
  Vector<std::uint32_t> largest_G_;
};

}  // namespace deltapipe::codec
