// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/topk/topk_selection.hpp"

#include <cmath>

#include "core/base/error.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/row.hpp"
#include "core/codec/topk/bit_counting.hpp"
#include "core/codec/topk/compaction.hpp"

#if defined(__SSE2__) && !defined(__CUDACC__) && !defined(__HIPCC__)
#include <immintrin.h>
#endif

namespace deltapipe::codec {

namespace {

/// Values that one team looks at; places within a chunk are kept in 16 bits.
constexpr int kChunk = kHostExecution ? 65536 : 4096;

// Bits of the key that the histograms are of.
constexpr int kBins = 2048;
KOKKOS_INLINE_FUNCTION constexpr int shift_of(int level) {
  return level == 0 ? 20 : level == 1 ? 10 : 0;
}
KOKKOS_INLINE_FUNCTION constexpr int bins_of(int level) {
  return level == 0 ? kBins : 1024;
}

// A team's own histogram. On the host several in turn: a count need not wait for the one before.
constexpr int kCopies = kHostExecution ? 4 : 1;
constexpr int kUncounted = kBins;  // the bin of what does not count
constexpr int kBinStride = kBins + 16;
constexpr std::size_t kHistogramBytes = sizeof(std::uint32_t) * kCopies * kBinStride;

KOKKOS_FORCEINLINE_FUNCTION std::uint32_t* own_histogram(const RowMember& team) {
  const std::size_t bytes = kHistogramBytes;  // taken by reference, as no constant of the host's is
  return static_cast<std::uint32_t*>(team.team_scratch(0).get_shmem(bytes));
}

/// own[b] := the number of i in [0, n) with bin(i) b.
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

// A look at a part of the values tells which of them need no second one.
constexpr int kRun = 256;                  // values side by side that are looked at
constexpr int kSkip = 32;                  // runs; one of them is
constexpr std::uint32_t kSampled = 16384;  // smaller groups are looked at as a whole

/// Arguments that the kernels share.
struct Selection {
  const TopKGroup* group_G;
  const float* values;
  Positions chosen;
  std::size_t max_size;
  int max_chunks;
  std::uint32_t* histogram_GB;
  std::uint32_t* threshold_G;
  std::uint32_t* wanted_G;
  std::uint32_t* least_G;  ///< smallest key of candidates
  std::uint32_t* again_G;  ///< 1: these were too few
  float* chosen_values;    ///< null: not wanted
  std::uint16_t* candidates;
  std::uint32_t* keys;  ///< of the candidates: the values' bits; the sign is not part of a key
  std::uint16_t* undecided;
  // For each chunk:
  std::uint32_t* candidates_GC;  ///< how many
  std::uint32_t* undecided_GC;   ///< of them, as large as the k-th largest in the upper bits
  std::uint32_t* larger_GC;      ///< of them, larger than the k-th largest
  std::uint32_t* equal_GC;       ///< as large as it
  std::uint32_t* ties_GC;        ///< of these, the first ones, which are chosen
  std::uint32_t* place_GC;       ///< of the chunk's first chosen position
  std::uint32_t* nonfinite_GC;
  std::uint32_t* largest_GC;  ///< finite magnitude
  std::uint32_t* nonfinite_G;
  std::uint32_t* largest_G;

  KOKKOS_INLINE_FUNCTION std::uint32_t* histogram(int group) const {
    return histogram_GB + static_cast<std::size_t>(group) * kBins;
  }
  KOKKOS_INLINE_FUNCTION static int chunks_of(const TopKGroup& group) {
    return group.most == 0 ? 0 : static_cast<int>((group.size + (kChunk - 1u)) / kChunk);
  }
};

constexpr std::size_t kChunkCounts = 8;

KOKKOS_FORCEINLINE_FUNCTION std::uint32_t without_sign(std::uint32_t bits) {
  return bits & 0x7fffffffu;
}

/// A team's part of a group; of no values behind the group's end.
struct Chunk {
  int group;
  std::size_t index;  ///< among all groups' chunks
  std::uint32_t first;
  int width;
  const float* x;
  std::uint16_t* candidates;
  std::uint32_t* keys;
  std::uint16_t* undecided;

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
    const std::size_t place = chunk.group * s.max_size + chunk.first;
    chunk.candidates = s.candidates + place;
    chunk.keys = s.keys + place;
    chunk.undecided = s.undecided + place;
    return chunk;
  }
};

/// Histogram of the upper bits of keys, of some or all.
struct Sample {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const int skip = s.group_G[chunk.group].size < kSampled ? 1 : kSkip;
    const int period = kRun * skip;
    const int rest = chunk.width % period;
    const int count = chunk.width / period * kRun + (rest < kRun ? rest : kRun);
    const float* x = chunk.x;
    if constexpr (kHostExecution) {  // runs are too short and far apart for a processor to foresee
#if defined(__GNUC__)
      for (int run = 0; run < chunk.width; run += period)
        for (int i = run; i < run + kRun && i < chunk.width; i += 16) __builtin_prefetch(x + i);
#endif
    }
    count_bins(
        team, count, kBins,
        [=](int i) { return magnitude_key(x[i / kRun * period + i % kRun]) >> shift_of(0); },
        s.histogram(chunk.group));
  }
};

/// The least key of candidates: of all that are among the k largest, most likely, and not many
/// more.
struct FindLeast {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int g = team.league_rank();
    std::uint32_t* histogram = s.histogram(g);
    const TopKGroup group = s.group_G[g];
    const auto seen = row_sum<std::uint32_t>(team, kBins, [=](int b) { return histogram[b]; });
    double wanted = group.most;
    if (seen < group.size) {
      const double share = wanted * seen / group.size;
      wanted = share + 4 * std::sqrt(share) + 8;
    }
    std::uint32_t* least = s.least_G + g;
    const auto from_top = [=](int i) { return histogram[kBins - 1 - i]; };
    row_scan<std::uint32_t>(team, kBins, from_top, [=](int i, std::uint32_t above) {
      const bool is_last = i + 1 == kBins;
      if (above >= wanted || (above + from_top(i) < wanted && !is_last)) return;
      // Zeros are no candidates.
      *least = is_last ? 1 : static_cast<std::uint32_t>(kBins - 1 - i) << shift_of(0);
    });
    row_for_synced(team, kBins, [=](int b) { histogram[b] = 0; });
  }
};

/// The next bits of the k-th largest key, from the histogram of the keys that have those known so
/// far; empties the histogram. The first bits may show that candidates are missing: then again.
struct FindBin {
  Selection s;
  int level;
  bool again = false;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int g = team.league_rank();
    std::uint32_t* histogram = s.histogram(g);
    const int bins = bins_of(level);
    if (again && s.again_G[g] == 0) return;
    if (level == 0 && is_short(team, g)) return;
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

  /// True if the group needs other candidates.
  KOKKOS_INLINE_FUNCTION bool is_short(const RowMember& team, int g) const {
    std::uint32_t* histogram = s.histogram(g);
    const auto found = row_sum<std::uint32_t>(team, kBins, [=](int b) { return histogram[b]; });
    const bool short_of = found < s.group_G[g].most && s.least_G[g] > 1 && !again;
    if constexpr (!kHostExecution) team.team_barrier();
    std::uint32_t* least = s.least_G + g;
    std::uint32_t* once_more = s.again_G + g;
    row_once(team, [=]() {
      *once_more = short_of ? 1 : 0;
      if (short_of) *least = 1;
    });
    if (short_of) row_for_synced(team, kBins, [=](int b) { histogram[b] = 0; });
    return short_of;
  }
};

/// Which of 64 values have keys of at least `least`, or are not finite: the n-th lowest bit is the
/// n-th value's.
KOKKOS_INLINE_FUNCTION std::uint64_t large_ones(const float* x, std::uint32_t least) {
  std::uint64_t large = 0;
#if defined(__SSE2__) && !defined(__CUDACC__) && !defined(__HIPCC__)
  const __m128i magnitude = _mm_set1_epi32(0x7fffffff);
  const __m128i below = _mm_set1_epi32(static_cast<int>(least - 1));
  for (int i = 0; i < 64; i += 4) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    const __m128i is = _mm_cmpgt_epi32(_mm_and_si128(bits, magnitude), below);
    const int mask = _mm_movemask_ps(_mm_castsi128_ps(is));
    large |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(mask)) << i;
  }
#else
  for (int i = 0; i < 64; ++i)
    large |= static_cast<std::uint64_t>((bits_of(x[i]) & 0x7fffffffu) >= least ? 1 : 0) << i;
#endif
  return large;
}

// Values to fetch ahead: processors do not look into the next page by themselves.
[[maybe_unused]] constexpr int kAhead = 1024;

/// The candidates' places, and the histogram of their keys' upper bits.
struct Collect {
  Selection s;
  bool again = false;  ///< only for groups whose candidates were too few

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0 || (again && s.again_G[chunk.group] == 0)) return;
    const std::uint32_t found = list_places(team, chunk, s.least_G[chunk.group]);
    const int count = static_cast<int>(found);
    std::uint32_t* keys = chunk.keys;
    // Values that are not finite are in the last bins, and rare.
    const auto bin = [=](int i) { return without_sign(keys[i]) >> shift_of(0); };
    std::uint32_t* own = own_histogram(team);
    count_own(team, count, kBins, bin, own);
    constexpr int kFinite = static_cast<int>(kInfinityBits >> shift_of(0));
    const auto nonfinite =
        row_sum<std::uint32_t>(team, kBins - kFinite, [=](int i) { return own[kFinite + i]; });
    const std::uint32_t largest =
        row_max(team, count, 0u, [=](int i) { return finite_magnitude(float_of(keys[i])); });
    if (nonfinite > 0) {
      row_for_synced(team, count, [=](int i) { keys[i] = magnitude_key(float_of(keys[i])); });
      count_own(
          team, count, kBins, [=](int i) { return keys[i] == 0 ? kUncounted : bin(i); }, own);
    }
    std::uint32_t* counted = s.candidates_GC + chunk.index;
    std::uint32_t* counted_nonfinite = s.nonfinite_GC + chunk.index;
    std::uint32_t* largest_found = s.largest_GC + chunk.index;
    row_once(team, [=]() {
      *counted = found;
      *counted_nonfinite = nonfinite;
      *largest_found = largest;
    });
    add_own(team, kBins, own, s.histogram(chunk.group));
  }

  /// Returns how many there are. What is not finite is among them.
  KOKKOS_INLINE_FUNCTION static std::uint32_t list_places(const RowMember& team, const Chunk& chunk,
                                                          std::uint32_t least) {
    const float* x = chunk.x;
    std::uint16_t* places = chunk.candidates;
    std::uint32_t* keys = chunk.keys;
    const auto is_large = [=](int i) { return without_sign(bits_of(x[i])) >= least ? 1u : 0u; };
    if constexpr (kHostExecution) {
      std::uint32_t found = 0;
      int whole = 0;
#if defined(DELTAPIPE_CODEC_COMPACTION)
      const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
      const __m256i below = _mm256_set1_epi32(static_cast<int>(least - 1));
      for (; whole + 8 <= chunk.width; whole += 8) {
        _mm_prefetch(reinterpret_cast<const char*>(x + whole + kAhead), _MM_HINT_T0);
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + whole));
        const unsigned mask = mask_of(_mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), below));
        const __m128i ones = places_of_ones(mask);
        store_some(bits, ones, keys + found);
        store_places(whole, ones, places + found);
        found += static_cast<std::uint32_t>(ones_of(mask));
      }
#else
      for (; whole + 64 <= chunk.width; whole += 64)
        for (std::uint64_t rest = large_ones(x + whole, least); rest != 0; rest &= rest - 1) {
          const int place = whole + lowest_one_of(rest);
          places[found] = static_cast<std::uint16_t>(place);
          keys[found++] = bits_of(x[place]);
        }
#endif
      for (int i = whole; i < chunk.width; ++i) {
        places[found] = static_cast<std::uint16_t>(i);
        keys[found] = bits_of(x[i]);
        found += is_large(i);
      }
      return found;
    } else {
      row_scan<std::uint32_t>(team, chunk.width, is_large, [=](int i, std::uint32_t place) {
        if (is_large(i) == 0) return;
        places[place] = static_cast<std::uint16_t>(i);
        keys[place] = bits_of(x[i]);
      });
      return row_sum<std::uint32_t>(team, chunk.width, is_large);
    }
  }
};

/// Candidates whose keys' upper bits are larger than the threshold's are chosen; those where they
/// are the same are undecided. Histogram of the next bits of these.
struct Divide {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const std::uint32_t* keys = chunk.keys;
    std::uint16_t* undecided = chunk.undecided;
    const std::uint32_t prefix = s.threshold_G[chunk.group];
    const int found = static_cast<int>(s.candidates_GC[chunk.index]);
    const auto is_larger = [=](std::uint32_t bits) {
      return (without_sign(bits) >> shift_of(0)) > prefix ? 1u : 0u;
    };
    const auto is_undecided = [=](std::uint32_t bits) {
      return (without_sign(bits) >> shift_of(0)) == prefix && without_sign(bits) > 0 ? 1u : 0u;
    };
    std::uint32_t larger = 0, open = 0;
    if constexpr (kHostExecution) {  // without branches, which would be mispredicted
      int i = 0;
#if defined(DELTAPIPE_CODEC_COMPACTION)
      const __m256i wanted = _mm256_set1_epi32(static_cast<int>(prefix));
      const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
      for (; i + 8 <= found; i += 8) {
        const __m256i key = _mm256_and_si256(
            magnitude, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + i)));
        const __m256i upper = _mm256_srli_epi32(key, shift_of(0));
        const __m256i is_some = _mm256_cmpgt_epi32(key, _mm256_setzero_si256());
        const unsigned mask = mask_of(_mm256_and_si256(_mm256_cmpeq_epi32(upper, wanted), is_some));
        larger += static_cast<std::uint32_t>(ones_of(mask_of(_mm256_cmpgt_epi32(upper, wanted))));
        store_places(i, places_of_ones(mask), undecided + open);
        open += static_cast<std::uint32_t>(ones_of(mask));
      }
#endif
      for (; i < found; ++i) {
        undecided[open] = static_cast<std::uint16_t>(i);
        open += is_undecided(keys[i]);
        larger += is_larger(keys[i]);
      }
    } else {
      const auto counts = [=](int i) { return is_undecided(keys[i]); };
      row_scan<std::uint32_t>(team, found, counts, [=](int i, std::uint32_t place) {
        if (counts(i) > 0) undecided[place] = static_cast<std::uint16_t>(i);
      });
      open = row_sum<std::uint32_t>(team, found, counts);
      larger = row_sum<std::uint32_t>(team, found, [=](int i) { return is_larger(keys[i]); });
    }
    std::uint32_t* larger_counted = s.larger_GC + chunk.index;
    std::uint32_t* undecided_counted = s.undecided_GC + chunk.index;
    row_once(team, [=]() {
      *larger_counted = larger;
      *undecided_counted = open;
    });
    count_bins(
        team, static_cast<int>(open), bins_of(1),
        [=](int i) { return (without_sign(keys[undecided[i]]) >> shift_of(1)) & 1023u; },
        s.histogram(chunk.group));
  }
};

/// Histogram of the last bits of those undecided whose other bits are the threshold's.
struct CountLastBits {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const std::uint32_t* keys = chunk.keys;
    const std::uint16_t* undecided = chunk.undecided;
    const std::uint32_t prefix = s.threshold_G[chunk.group];
    count_bins(
        team, static_cast<int>(s.undecided_GC[chunk.index]), bins_of(2),
        [=](int i) {
          const std::uint32_t key = without_sign(keys[undecided[i]]);
          return (key >> shift_of(1)) == prefix ? key & 1023u : kUncounted;
        },
        s.histogram(chunk.group));
  }
};

struct CountLarger {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const std::uint32_t* keys = chunk.keys;
    const std::uint16_t* undecided = chunk.undecided;
    const std::uint32_t threshold = s.threshold_G[chunk.group];
    const int open = static_cast<int>(s.undecided_GC[chunk.index]);
    const auto above = row_sum<std::uint32_t>(
        team, open, [=](int i) { return without_sign(keys[undecided[i]]) > threshold ? 1u : 0u; });
    const auto equal = row_sum<std::uint32_t>(
        team, open, [=](int i) { return without_sign(keys[undecided[i]]) == threshold ? 1u : 0u; });
    std::uint32_t* larger_counted = s.larger_GC + chunk.index;
    std::uint32_t* equal_counted = s.equal_GC + chunk.index;
    row_once(team, [=]() {
      *larger_counted += above;
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
    const std::uint32_t* larger = s.larger_GC + first;
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
    const auto chosen = [=](int c) { return larger[c] + ties[c]; };
    row_scan<std::uint32_t>(team, chunks, chosen,
                            [=](int c, std::uint32_t before) { place[c] = before; });
    const auto total = row_sum<std::uint32_t>(team, chunks, chosen);
    const auto bad = row_sum<std::uint32_t>(team, chunks, [=](int c) { return nonfinite[c]; });
    const std::uint32_t* largest = s.largest_GC + first;
    const std::uint32_t most = row_max(team, chunks, 0u, [=](int c) { return largest[c]; });
    std::uint32_t* largest_of_all = s.largest_G + g;
    row_once(team, [=]() {
      *count = total;
      *nonfinite_sum = bad;
      *largest_of_all = most;
    });
  }
};

/// The chosen positions and, where they are wanted, their values.
struct WriteChosen {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const std::uint32_t* keys = chunk.keys;
    const std::uint16_t* candidates = chunk.candidates;
    const std::uint32_t threshold = s.threshold_G[chunk.group];
    const std::uint32_t ties = s.ties_GC[chunk.index];
    const int found = static_cast<int>(s.candidates_GC[chunk.index]);
    const std::uint32_t first = chunk.first;
    const std::size_t place = chunk.group * s.chosen.stride + s.place_GC[chunk.index];
    std::uint32_t* chosen = s.chosen.position + place;
    float* values = s.chosen_values == nullptr ? nullptr : s.chosen_values + place;
    // Keys of what is not finite are those of other numbers.
    const float* x = s.nonfinite_GC[chunk.index] > 0 ? chunk.x : nullptr;
    if constexpr (kHostExecution) {
      const int taken = gather(chunk, found, threshold, ties);
      row_for(team, taken, [=](int i) { chosen[i] = first + candidates[i]; });
      if (values == nullptr) return;
      if (x == nullptr)
        row_for(team, taken, [=](int i) { values[i] = float_of(keys[i]); });
      else
        row_for(team, taken, [=](int i) { values[i] = x[candidates[i]]; });
    } else {
      // Larger ones before in the lower half, equal ones in the upper half.
      const auto larger_and_equal = [=](int i) {
        const std::uint32_t key = without_sign(keys[i]);
        if (key > threshold) return std::uint64_t{1};
        return key > 0 && key == threshold ? std::uint64_t{1} << 32 : std::uint64_t{0};
      };
      row_scan<std::uint64_t>(team, found, larger_and_equal, [=](int i, std::uint64_t before) {
        const std::uint64_t kind = larger_and_equal(i);
        const auto larger = static_cast<std::uint32_t>(before);
        const auto equal = static_cast<std::uint32_t>(before >> 32);
        if (kind == 0 || (kind > 1 && equal >= ties)) return;
        const std::uint32_t to = larger + (equal < ties ? equal : ties);
        chosen[to] = first + candidates[i];
        if (values != nullptr) values[to] = x == nullptr ? float_of(keys[i]) : x[candidates[i]];
      });
    }
  }

  /// Moves the candidates that are chosen to the front of a chunk's lists; returns their number.
  /// Without branches, which would be mispredicted.
  KOKKOS_INLINE_FUNCTION static int gather(const Chunk& chunk, int found, std::uint32_t threshold,
                                           std::uint32_t ties) {
    std::uint32_t* keys = chunk.keys;
    std::uint16_t* candidates = chunk.candidates;
    std::uint32_t taken = 0, equal = 0;
    int i = 0;
#if defined(DELTAPIPE_CODEC_COMPACTION)
    const __m256i least = _mm256_set1_epi32(static_cast<int>(threshold));
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    for (; i + 8 <= found; i += 8) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + i));
      const __m128i places = _mm_loadu_si128(reinterpret_cast<const __m128i*>(candidates + i));
      const __m256i key = _mm256_and_si256(bits, magnitude);
      unsigned mask = mask_of(_mm256_cmpgt_epi32(key, least));
      unsigned same = threshold == 0 ? 0 : mask_of(_mm256_cmpeq_epi32(key, least));
      for (; same != 0; same &= same - 1) mask |= equal++ < ties ? same & (0u - same) : 0u;
      const __m128i ones = places_of_ones(mask);
      store_some(bits, ones, keys + taken);
      store_some(places, ones, candidates + taken);
      taken += static_cast<std::uint32_t>(ones_of(mask));
    }
#endif
    for (; i < found; ++i) {
      const std::uint16_t place = candidates[i];
      const std::uint32_t bits = keys[i];
      const std::uint32_t key = without_sign(bits);
      const std::uint32_t is_equal = key > 0 && key == threshold ? 1 : 0;
      const std::uint32_t is_tie = is_equal & (equal < ties ? 1u : 0u);
      equal += is_equal;
      candidates[taken] = place;
      keys[taken] = bits;
      taken += (key > threshold ? 1u : 0u) | is_tie;
    }
    return static_cast<int>(taken);
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
  least_G_ = Vector<std::uint32_t>("deltapipe::TopK::least", groups);
  again_G_ = Vector<std::uint32_t>("deltapipe::TopK::again", groups);
  candidates_ =
      Vector<std::uint16_t>(uninitialized("deltapipe::TopK::candidates"), groups * max_size);
  keys_ = Vector<std::uint32_t>(uninitialized("deltapipe::TopK::keys"), groups * max_size);
  undecided_ =
      Vector<std::uint16_t>(uninitialized("deltapipe::TopK::undecided"), groups * max_size);
  chunk_counts_ =
      Vector<std::uint32_t>("deltapipe::TopK::chunk_counts", kChunkCounts * groups * max_chunks_);
  nonfinite_G_ = Vector<std::uint32_t>("deltapipe::TopK::nonfinite", groups);
  largest_G_ = Vector<std::uint32_t>("deltapipe::TopK::largest", groups);
}

std::size_t TopKSelection::memory_bytes() const {
  return bytes_of_view(histogram_GB_) + bytes_of_view(threshold_G_) + bytes_of_view(wanted_G_) +
         bytes_of_view(least_G_) + bytes_of_view(again_G_) + bytes_of_view(candidates_) +
         bytes_of_view(keys_) + bytes_of_view(undecided_) + bytes_of_view(chunk_counts_) +
         bytes_of_view(nonfinite_G_) + bytes_of_view(largest_G_);
}

void TopKSelection::select(const ExecSpace& exec, int groups, const TopKGroup* group_G,
                           const float* values, const Positions& chosen, float* chosen_values) {
  if (groups == 0) return;
  const std::size_t each = chunk_counts_.size() / kChunkCounts;
  std::uint32_t* counts = chunk_counts_.data();
  const Selection s{group_G,
                    values,
                    chosen,
                    max_size_,
                    max_chunks_,
                    histogram_GB_.data(),
                    threshold_G_.data(),
                    wanted_G_.data(),
                    least_G_.data(),
                    again_G_.data(),
                    chosen_values,
                    candidates_.data(),
                    keys_.data(),
                    undecided_.data(),
                    counts,
                    counts + each,
                    counts + 2 * each,
                    counts + 3 * each,
                    counts + 4 * each,
                    counts + 5 * each,
                    counts + 6 * each,
                    counts + 7 * each,
                    nonfinite_G_.data(),
                    largest_G_.data()};
  const RowPolicy by_chunk = row_policy(exec, groups * max_chunks_);
  const RowPolicy counting = row_policy(exec, groups * max_chunks_, kHistogramBytes);
  const RowPolicy by_group = row_policy(exec, groups);
  for_rows("deltapipe::TopK::sample", counting, Sample{s});
  for_rows("deltapipe::TopK::find_least", by_group, FindLeast{s});
  for_rows("deltapipe::TopK::collect", counting, Collect{s});
  for_rows("deltapipe::TopK::upper_bits", by_group, FindBin{s, 0});
  for_rows("deltapipe::TopK::collect_again", counting, Collect{s, true});
  for_rows("deltapipe::TopK::upper_bits_again", by_group, FindBin{s, 0, true});
  for_rows("deltapipe::TopK::divide", counting, Divide{s});
  for_rows("deltapipe::TopK::middle_bits", by_group, FindBin{s, 1});
  for_rows("deltapipe::TopK::count_last_bits", counting, CountLastBits{s});
  for_rows("deltapipe::TopK::last_bits", by_group, FindBin{s, 2});
  for_rows("deltapipe::TopK::count_larger", by_chunk, CountLarger{s});
  for_rows("deltapipe::TopK::place_chunks", by_group, PlaceChunks{s});
  for_rows("deltapipe::TopK::write_chosen", by_chunk, WriteChosen{s});
}

}  // namespace deltapipe::codec
