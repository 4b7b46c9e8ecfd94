// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/topk_selection.hpp"

#include "core/base/error.hpp"
#include "core/base/memory_ledger.hpp"
#include "core/base/row.hpp"

namespace deltapipe::codec {

namespace {

/// Values that one team looks at; places within a chunk are kept in 16 bits.
constexpr int kChunk = kHostExecution ? 65536 : 4096;

// Bits of the key that the histograms are of.
constexpr int kLevels = 3;
constexpr int kBins = 2048;
KOKKOS_INLINE_FUNCTION constexpr int shift_of(int level) {
  return level == 0 ? 20 : level == 1 ? 10 : 0;
}
KOKKOS_INLINE_FUNCTION constexpr int bins_of(int level) {
  return level == 0 ? kBins : 1024;
}

// A team's own histogram. On the host several in turn: a count need not wait for the one before.
constexpr int kCopies = kHostExecution ? 2 : 1;
constexpr int kUncounted = kBins;  // the bin of what does not count
constexpr int kBinStride = kBins + 16;
constexpr std::size_t kHistogramBytes = sizeof(std::uint32_t) * kCopies * kBinStride;

/// Adds to total the number of i in [0, n) in each bin(i).
template <class Bin>
KOKKOS_FORCEINLINE_FUNCTION void count_bins(const RowMember& team, int n, int bins, const Bin& bin,
                                            std::uint32_t* total) {
  auto* own = static_cast<std::uint32_t*>(team.team_scratch(0).get_shmem(kHistogramBytes));
  row_for_synced(team, kCopies * kBinStride, [=](int i) { own[i] = 0; });
  if constexpr (kHostExecution) {
    const int whole = n - n % kCopies;
    for (int i = 0; i < whole; i += kCopies)
      for (int copy = 0; copy < kCopies; ++copy) ++own[copy * kBinStride + bin(i + copy)];
    for (int i = whole; i < n; ++i) ++own[bin(i)];
  } else {
    row_for_synced(team, n, [&](int i) { Kokkos::atomic_add(&own[bin(i)], 1u); });
  }
  for (int copy = 1; copy < kCopies; ++copy)
    row_for_synced(team, bins, [=](int b) { own[b] += own[copy * kBinStride + b]; });
  if constexpr (kHostExecution) {
    for (int b = 0; b < bins; ++b)
      if (own[b] > 0) Kokkos::atomic_add(&total[b], own[b]);
  } else {
    row_for_synced(team, bins, [=](int b) {
      if (own[b] > 0) Kokkos::atomic_add(&total[b], own[b]);
    });
  }
}

/// What the kernels share.
struct Selection {
  const TopKGroup* group_G;
  const float* values;
  Positions chosen;
  std::size_t max_size;
  int max_chunks;
  std::uint32_t* histogram_GB;
  std::uint32_t* threshold_G;
  std::uint32_t* wanted_G;
  std::uint16_t* candidates;
  // Of each chunk:
  std::uint32_t* candidates_GC;  ///< how many
  std::uint32_t* above_GC;       ///< of them, larger than the k-th largest
  std::uint32_t* equal_GC;       ///< as large as it
  std::uint32_t* ties_GC;        ///< of these, the first ones, which are chosen
  std::uint32_t* place_GC;       ///< of the chunk's first chosen position
  std::uint32_t* nonfinite_GC;
  std::uint32_t* nonfinite_G;

  KOKKOS_INLINE_FUNCTION std::uint32_t* histogram(int group) const {
    return histogram_GB + static_cast<std::size_t>(group) * kBins;
  }
  KOKKOS_INLINE_FUNCTION static int chunks_of(const TopKGroup& group) {
    return group.most == 0 ? 0 : static_cast<int>((group.size + (kChunk - 1u)) / kChunk);
  }
};

/// A team's part of a group; of no values behind the group's end.
struct Chunk {
  int group;
  std::size_t index;  ///< among all groups' chunks
  std::uint32_t first;
  int width;
  const float* x;
  std::uint16_t* candidates;

  KOKKOS_INLINE_FUNCTION static Chunk of(const Selection& s, int index) {
    Chunk chunk;
    chunk.group = index / s.max_chunks;
    chunk.index = static_cast<std::size_t>(index);
    const int c = index % s.max_chunks;
    const TopKGroup& group = s.group_G[chunk.group];
    chunk.first = static_cast<std::uint32_t>(c) * kChunk;
    const std::uint32_t rest = c < Selection::chunks_of(group) ? group.size - chunk.first : 0;
    chunk.width = static_cast<int>(rest < kChunk ? rest : kChunk);
    chunk.x = s.values + group.first + chunk.first;
    chunk.candidates = s.candidates + chunk.group * s.max_size + chunk.first;
    return chunk;
  }
};

/// Histogram of all keys' upper bits.
struct CountKeys {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const float* x = chunk.x;
    const std::uint32_t largest =
        row_max(team, chunk.width, 0u, [=](int i) { return bits_of(x[i]) & 0x7fffffffu; });
    std::uint32_t nonfinite = 0;
    std::uint32_t* total = s.histogram(chunk.group);
    constexpr int shift = shift_of(0);
    if (largest >= kInfinityBits) {
      nonfinite =
          row_sum<std::uint32_t>(team, chunk.width, [=](int i) { return is_nonfinite(x[i]); });
      count_bins(
          team, chunk.width, kBins, [=](int i) { return magnitude_key(x[i]) >> shift; }, total);
    } else {
      count_bins(
          team, chunk.width, kBins, [=](int i) { return (bits_of(x[i]) & 0x7fffffffu) >> shift; },
          total);
    }
    std::uint32_t* counted = s.nonfinite_GC + chunk.index;
    Kokkos::single(Kokkos::PerTeam(team), [=]() { *counted = nonfinite; });
  }
};

/// The next bits of the k-th largest key, from the histogram of the keys that have those known so
/// far; empties the histogram.
struct FindBin {
  Selection s;
  int level;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int g = team.league_rank();
    std::uint32_t* histogram = s.histogram(g);
    const int bins = bins_of(level);
    const std::uint32_t wanted = level == 0 ? s.group_G[g].most : s.wanted_G[g];
    const std::uint32_t known = level == 0 ? 0 : s.threshold_G[g] << 10;
    std::uint32_t* threshold = s.threshold_G + g;
    std::uint32_t* still_wanted = s.wanted_G + g;
    const auto from_top = [=](int i) { return histogram[bins - 1 - i]; };
    row_scan<std::uint32_t>(team, bins, from_top, [=](int i, std::uint32_t above) {
      // Zeros are no candidates: where they are wanted the threshold is 0.
      if (above >= wanted || (wanted - above > from_top(i) && i + 1 < bins)) return;
      *threshold = known | static_cast<std::uint32_t>(bins - 1 - i);
      *still_wanted = wanted - above;
    });
    row_for_synced(team, bins, [=](int b) { histogram[b] = 0; });
  }
};

/// The candidates: places whose key's upper bits are the threshold's or larger; histogram of the
/// next bits of those where they are the same.
struct Collect {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const float* x = chunk.x;
    const std::uint32_t prefix = s.threshold_G[chunk.group];
    const std::uint32_t lower_end = prefix << shift_of(0);
    const std::uint32_t least = lower_end > 0 ? lower_end : 1;  // zeros are never chosen
    std::uint16_t* candidates = chunk.candidates;
    std::uint32_t* counted = s.candidates_GC + chunk.index;
    std::uint32_t found = 0;
    if constexpr (kHostExecution) {
      if (s.nonfinite_GC[chunk.index] > 0)
        found = list_places(chunk, [=](int i) { return magnitude_key(x[i]) >= least; });
      else
        found = list_places(chunk, [=](int i) { return (bits_of(x[i]) & 0x7fffffffu) >= least; });
      *counted = found;
    } else {
      const auto is_candidate = [=](int i) { return magnitude_key(x[i]) >= least ? 1u : 0u; };
      found = row_sum<std::uint32_t>(team, chunk.width, is_candidate);
      row_scan<std::uint32_t>(team, chunk.width, is_candidate, [=](int i, std::uint32_t place) {
        if (is_candidate(i) > 0) candidates[place] = static_cast<std::uint16_t>(i);
      });
      Kokkos::single(Kokkos::PerTeam(team), [=]() { *counted = found; });
    }
    count_bins(
        team, static_cast<int>(found), bins_of(1),
        [=](int i) {
          const std::uint32_t key = magnitude_key(x[candidates[i]]);
          return (key >> shift_of(0)) == prefix ? (key >> shift_of(1)) & 1023u : kUncounted;
        },
        s.histogram(chunk.group));
  }

  /// Host: without branches, which would be mispredicted.
  template <class Is>
  KOKKOS_FORCEINLINE_FUNCTION static std::uint32_t list_places(const Chunk& chunk, const Is& is) {
    std::uint32_t found = 0;
    for (int i = 0; i < chunk.width; ++i) {
      chunk.candidates[found] = static_cast<std::uint16_t>(i);
      found += is(i) ? 1 : 0;
    }
    return found;
  }
};

/// Histogram of the candidates' last bits where the others are the threshold's.
struct CountLastBits {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const float* x = chunk.x;
    const std::uint16_t* candidates = chunk.candidates;
    const std::uint32_t prefix = s.threshold_G[chunk.group];
    count_bins(
        team, static_cast<int>(s.candidates_GC[chunk.index]), bins_of(2),
        [=](int i) {
          const std::uint32_t key = magnitude_key(x[candidates[i]]);
          return (key >> shift_of(1)) == prefix ? key & 1023u : kUncounted;
        },
        s.histogram(chunk.group));
  }
};

struct CountCandidates {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const float* x = chunk.x;
    const std::uint16_t* candidates = chunk.candidates;
    const std::uint32_t threshold = s.threshold_G[chunk.group];
    const int found = static_cast<int>(s.candidates_GC[chunk.index]);
    const auto above = row_sum<std::uint32_t>(
        team, found, [=](int i) { return magnitude_key(x[candidates[i]]) > threshold ? 1u : 0u; });
    const auto equal = row_sum<std::uint32_t>(
        team, found, [=](int i) { return magnitude_key(x[candidates[i]]) == threshold ? 1u : 0u; });
    std::uint32_t* above_counted = s.above_GC + chunk.index;
    std::uint32_t* equal_counted = s.equal_GC + chunk.index;
    Kokkos::single(Kokkos::PerTeam(team), [=]() {
      *above_counted = above;
      *equal_counted = equal;
    });
  }
};

/// How many ties each chunk may take, and the places of its chosen positions.
struct PlaceChunks {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int g = team.league_rank();
    const int chunks = Selection::chunks_of(s.group_G[g]);
    const std::size_t first = static_cast<std::size_t>(g) * s.max_chunks;
    const std::uint32_t* above = s.above_GC + first;
    const std::uint32_t* equal = s.equal_GC + first;
    const std::uint32_t* nonfinite = s.nonfinite_GC + first;
    std::uint32_t* ties = s.ties_GC + first;
    std::uint32_t* place = s.place_GC + first;
    std::uint32_t* count = s.chosen.count_G + g;
    std::uint32_t* nonfinite_sum = s.nonfinite_G + g;
    const std::uint32_t wanted = s.wanted_G[g];
    row_scan<std::uint32_t>(
        team, chunks, [=](int c) { return equal[c]; },
        [=](int c, std::uint32_t before) {
          const std::uint32_t rest = before < wanted ? wanted - before : 0;
          ties[c] = equal[c] < rest ? equal[c] : rest;
        });
    const auto chosen = [=](int c) { return above[c] + ties[c]; };
    row_scan<std::uint32_t>(team, chunks, chosen,
                            [=](int c, std::uint32_t before) { place[c] = before; });
    const auto total = row_sum<std::uint32_t>(team, chunks, chosen);
    const auto bad = row_sum<std::uint32_t>(team, chunks, [=](int c) { return nonfinite[c]; });
    Kokkos::single(Kokkos::PerTeam(team), [=]() {
      *count = total;
      *nonfinite_sum = bad;
    });
  }
};

struct WriteChosen {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const float* x = chunk.x;
    std::uint16_t* candidates = chunk.candidates;
    const std::uint32_t threshold = s.threshold_G[chunk.group];
    const std::uint32_t ties = s.ties_GC[chunk.index];
    const int found = static_cast<int>(s.candidates_GC[chunk.index]);
    const std::uint32_t first = chunk.first;
    std::uint32_t* chosen = s.chosen.of(chunk.group) + s.place_GC[chunk.index];
    if constexpr (kHostExecution) {
      std::uint32_t taken = 0, equal = 0;
      for (int i = 0; i < found; ++i) {
        const std::uint16_t place = candidates[i];
        const std::uint32_t key = magnitude_key(x[place]);
        const std::uint32_t is_equal = key == threshold ? 1 : 0;
        const std::uint32_t is_tie = is_equal & (equal < ties ? 1u : 0u);
        equal += is_equal;
        candidates[taken] = place;
        taken += (key > threshold ? 1u : 0u) | is_tie;
      }
      for (std::uint32_t i = 0; i < taken; ++i) chosen[i] = first + candidates[i];
    } else {
      // Larger ones before in the lower half, equal ones in the upper half.
      const auto larger_and_equal = [=](int i) {
        const std::uint32_t key = magnitude_key(x[candidates[i]]);
        return key > threshold ? std::uint64_t{1} : key == threshold ? std::uint64_t{1} << 32 : 0;
      };
      row_scan<std::uint64_t>(team, found, larger_and_equal, [=](int i, std::uint64_t before) {
        const std::uint64_t kind = larger_and_equal(i);
        const auto larger = static_cast<std::uint32_t>(before);
        const auto equal = static_cast<std::uint32_t>(before >> 32);
        if (kind == 0 || (kind > 1 && equal >= ties)) return;
        chosen[larger + (equal < ties ? equal : ties)] = first + candidates[i];
      });
    }
  }
};

}  // namespace

TopKSelection::TopKSelection(int max_groups, std::size_t max_size)
    : max_size_(max_size), max_chunks_(static_cast<int>((max_size + kChunk - 1) / kChunk)) {
  DELTAPIPE_ASSERT(max_size > 0 && max_size < (std::size_t{1} << 31),
                   "positions are counted in 31 bits");
  const auto groups = static_cast<std::size_t>(max_groups);
  histogram_GB_ = Vector<std::uint32_t>("deltapipe::TopK::histogram", groups * kBins);
  threshold_G_ = Vector<std::uint32_t>("deltapipe::TopK::thresholds", groups);
  wanted_G_ = Vector<std::uint32_t>("deltapipe::TopK::wanted", groups);
  candidates_ =
      Vector<std::uint16_t>(uninitialized("deltapipe::TopK::candidates"), groups * max_size);
  chunk_counts_ = Vector<std::uint32_t>("deltapipe::TopK::chunk_counts", 6 * groups * max_chunks_);
  nonfinite_G_ = Vector<std::uint32_t>("deltapipe::TopK::nonfinite", groups);
}

std::size_t TopKSelection::memory_bytes() const {
  return bytes_of_view(histogram_GB_) + bytes_of_view(threshold_G_) + bytes_of_view(wanted_G_) +
         bytes_of_view(candidates_) + bytes_of_view(chunk_counts_) + bytes_of_view(nonfinite_G_);
}

void TopKSelection::select(const ExecSpace& exec, int groups, const TopKGroup* group_G,
                           const float* values, const Positions& chosen) {
  if (groups == 0) return;
  const std::size_t each = chunk_counts_.size() / 6;
  std::uint32_t* counts = chunk_counts_.data();
  const Selection s{group_G,
                    values,
                    chosen,
                    max_size_,
                    max_chunks_,
                    histogram_GB_.data(),
                    threshold_G_.data(),
                    wanted_G_.data(),
                    candidates_.data(),
                    counts,
                    counts + each,
                    counts + 2 * each,
                    counts + 3 * each,
                    counts + 4 * each,
                    counts + 5 * each,
                    nonfinite_G_.data()};
  const RowPolicy by_chunk = row_policy(exec, groups * max_chunks_);
  const RowPolicy counting = row_policy(exec, groups * max_chunks_, kHistogramBytes);
  const RowPolicy by_group = row_policy(exec, groups);
  Kokkos::parallel_for("deltapipe::TopK::count_keys", counting, CountKeys{s});
  Kokkos::parallel_for("deltapipe::TopK::upper_bits", by_group, FindBin{s, 0});
  Kokkos::parallel_for("deltapipe::TopK::collect", counting, Collect{s});
  Kokkos::parallel_for("deltapipe::TopK::middle_bits", by_group, FindBin{s, 1});
  Kokkos::parallel_for("deltapipe::TopK::count_last_bits", counting, CountLastBits{s});
  Kokkos::parallel_for("deltapipe::TopK::last_bits", by_group, FindBin{s, 2});
  Kokkos::parallel_for("deltapipe::TopK::count_candidates", by_chunk, CountCandidates{s});
  Kokkos::parallel_for("deltapipe::TopK::place_chunks", by_group, PlaceChunks{s});
  Kokkos::parallel_for("deltapipe::TopK::write_chosen", by_chunk, WriteChosen{s});
}

}  // namespace deltapipe::codec
