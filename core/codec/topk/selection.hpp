// SPDX-License-Identifier: BSD-3-Clause
// Arguments and histograms that the kernels of a selection (topk_selection.cpp) share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/parallel/row.hpp"
#include "core/codec/topk/topk_selection.hpp"

namespace deltapipe::codec::selection {

/// Values that one team processes. Places within a chunk are stored in 16 bits.
inline constexpr int kChunk = kHostExecution ? 65536 : 4096;

// Bits of the key that the histograms count.
inline constexpr int kBins = 2048;
KOKKOS_INLINE_FUNCTION constexpr int shift_of(int level) {
  return level == 0 ? 20 : level == 1 ? 10 : 0;
}
KOKKOS_INLINE_FUNCTION constexpr int bins_of(int level) {
  return level == 0 ? kBins : 1024;
}

// A team's own histogram. A host alternates between several: a count need not wait for the previous
// one.
inline constexpr int kCopies = kHostExecution ? 4 : 1;
inline constexpr int kUncounted = kBins;  // the bin of values that do not count
inline constexpr int kBinStride = kBins + 16;
inline constexpr std::size_t kHistogramBytes = sizeof(std::uint32_t) * kCopies * kBinStride;

KOKKOS_FORCEINLINE_FUNCTION std::uint32_t* own_histogram(const RowMember& team) {
  // get_shmem() takes a reference, and device code cannot refer to the host's constant.
  const std::size_t bytes = kHistogramBytes;
  return static_cast<std::uint32_t*>(team.team_scratch(0).get_shmem(bytes));
}

/// Sets own[b] to the number of i in [0, n) with bin(i) == b.
template <class Bin>
KOKKOS_FORCEINLINE_FUNCTION void count_own(const RowMember& team, int n, int bins, const Bin& bin,
                                           std::uint32_t* own) {
  row_for_synced(team, kCopies * kBinStride, [=](int i) { own[i] = 0; });
  if constexpr (kHostExecution) {
    const int whole = n - n % kCopies;
    for (int i = 0; i < whole; i += kCopies)
      for (int copy = 0; copy < kCopies; ++copy) ++own[copy * kBinStride + bin(i + copy)];
    for (int i = whole; i < n; ++i) ++own[bin(i)];
  } else {
    row_for_synced(team, n, [&](int i) { atomic_add(&own[bin(i)], 1u); });
  }
  for (int copy = 1; copy < kCopies; ++copy)
    row_for_synced(team, bins, [=](int b) { own[b] += own[copy * kBinStride + b]; });
}

KOKKOS_FORCEINLINE_FUNCTION void add_own(const RowMember& team, int bins, const std::uint32_t* own,
                                         std::uint32_t* total) {
  if constexpr (kHostExecution) {
    for (int b = 0; b < bins; ++b)
      if (own[b] > 0) atomic_add(&total[b], own[b]);
  } else {
    row_for_synced(team, bins, [=](int b) {
      if (own[b] > 0) atomic_add(&total[b], own[b]);
    });
  }
}

/// Adds to total the number of i in [0, n) in each bin(i).
template <class Bin>
KOKKOS_FORCEINLINE_FUNCTION void count_bins(const RowMember& team, int n, int bins, const Bin& bin,
                                            std::uint32_t* total) {
  std::uint32_t* own = own_histogram(team);
  count_own(team, n, bins, bin, own);
  add_own(team, bins, own, total);
}

/// Arguments that the kernels share.
struct Selection {
  const TopKGroup* group_G;
  const float* values;
  Positions chosen;
  std::size_t max_size;
  int max_chunks;
  std::uint32_t* histogram_GB;
  GroupState* state_G;
  float* chosen_values;  ///< null: not required
  std::uint16_t* candidates;
  std::uint32_t* keys;  ///< bits of the candidates' values; the sign is not part of a key
  std::uint16_t* undecided;
  ChunkCounts* counts_GC;  ///< counts of each chunk
  std::uint32_t* nonfinite_G;
  std::uint32_t* largest_G;

  KOKKOS_INLINE_FUNCTION std::uint32_t* histogram(int group) const {
    return histogram_GB + static_cast<std::size_t>(group) * kBins;
  }
  KOKKOS_INLINE_FUNCTION static int chunks_of(const TopKGroup& group) {
    return group.most == 0 ? 0 : static_cast<int>((group.size + (kChunk - 1u)) / kChunk);
  }
};

KOKKOS_FORCEINLINE_FUNCTION std::uint32_t without_sign(std::uint32_t bits) {
  return bits & 0x7fffffffu;
}

/// A team's part of a group; has no values after the group's end.
struct Chunk {
  int group;
  GroupState* state;
  ChunkCounts* counts;
  std::uint32_t first;
  int width;
  const float* x;
  std::uint16_t* candidates;
  std::uint32_t* keys;
  std::uint16_t* undecided;

  KOKKOS_INLINE_FUNCTION static Chunk of(const Selection& s, int index) {
    Chunk chunk;
    chunk.group = index / s.max_chunks;
    chunk.state = s.state_G + chunk.group;
    chunk.counts = s.counts_GC + index;
    const int c = index % s.max_chunks;
    const TopKGroup& group = s.group_G[chunk.group];
    chunk.first = static_cast<std::uint32_t>(c) * kChunk;
    const std::uint32_t rest = c < Selection::chunks_of(group) ? group.size - chunk.first : 0;
    chunk.width = static_cast<int>(rest < kChunk ? rest : kChunk);
    chunk.x = s.values + group.first + chunk.first;
    const std::size_t place = chunk.group * s.max_size + chunk.first;
    chunk.candidates = s.candidates + place;
    chunk.keys = s.keys + place;
    chunk.undecided = s.undecided + place;
    return chunk;
  }
};

}  // namespace deltapipe::codec::selection
