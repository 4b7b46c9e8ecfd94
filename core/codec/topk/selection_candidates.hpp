// SPDX-License-Identifier: BSD-3-Clause
// The candidates of a selection: values not below a bound that some of the values suggest, and the
// histogram of the upper bits of their keys.
#pragma once

#include <cmath>

#include "core/codec/topk/bit_counting.hpp"
#include "core/codec/topk/compaction.hpp"
#include "core/codec/topk/selection.hpp"

namespace deltapipe::codec::selection {

// A sample of the values shows which of them need not be read again.
inline constexpr int kRun = 256;                  // consecutive values in the sample
inline constexpr int kSkip = 32;                  // one of this many runs is in the sample
inline constexpr std::uint32_t kSampled = 16384;  // smaller groups are sampled as a whole

/// Counts the upper bits of keys, of some or all values.
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
    if constexpr (kHostExecution) {  // processors do not predict short runs that are far apart
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

/// Finds the least key of candidates, so that very likely all of the k largest are candidates, and
/// not many more.
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
    std::uint32_t* least = &s.state_G[g].least;
    const auto from_top = [=](int i) { return histogram[kBins - 1 - i]; };
    row_scan<std::uint32_t>(team, kBins, from_top, [=](int i, std::uint32_t above) {
      const bool is_last = i + 1 == kBins;
      if (above >= wanted || (above + from_top(i) < wanted && !is_last)) return;
      // Zeros are not candidates.
      *least = is_last ? 1 : static_cast<std::uint32_t>(kBins - 1 - i) << shift_of(0);
    });
    row_for_synced(team, kBins, [=](int b) { histogram[b] = 0; });
  }
};

/// Finds the next bits of the k-th largest key from the histogram of the keys with the bits known
/// so far, and empties the histogram. If the first bits show that candidates are missing, they are
/// collected and counted again.
struct FindBin {
  Selection s;
  int level;
  bool again = false;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int g = team.league_rank();
    std::uint32_t* histogram = s.histogram(g);
    const int bins = bins_of(level);
    GroupState* state = s.state_G + g;
    if (again && state->again == 0) return;
    if (level == 0 && is_short(team, g)) return;
    const std::uint32_t wanted = level == 0 ? s.group_G[g].most : state->wanted;
    const std::uint32_t known = level == 0 ? 0 : state->threshold << 10;
    const auto from_top = [=](int i) { return histogram[bins - 1 - i]; };
    row_scan<std::uint32_t>(team, bins, from_top, [=](int i, std::uint32_t above) {
      // Zeros are not candidates: if they are needed, the threshold is 0.
      if (above >= wanted || (wanted - above > from_top(i) && i + 1 < bins)) return;
      state->threshold = known | static_cast<std::uint32_t>(bins - 1 - i);
      state->wanted = wanted - above;
    });
    row_for_synced(team, bins, [=](int b) { histogram[b] = 0; });
  }

  /// Returns true if the group needs other candidates.
  KOKKOS_INLINE_FUNCTION bool is_short(const RowMember& team, int g) const {
    std::uint32_t* histogram = s.histogram(g);
    const auto found = row_sum<std::uint32_t>(team, kBins, [=](int b) { return histogram[b]; });
    const bool short_of = found < s.group_G[g].most && s.state_G[g].least > 1 && !again;
    if constexpr (!kHostExecution) team.team_barrier();
    row_once(team, [&]() {
      s.state_G[g].again = short_of ? 1 : 0;
      if (short_of) s.state_G[g].least = 1;
    });
    if (short_of) row_for_synced(team, kBins, [=](int b) { histogram[b] = 0; });
    return short_of;
  }
};

// Values to fetch ahead: processors do not read into the next page by themselves.
[[maybe_unused]] inline constexpr int kAhead = 1024;

/// Lists the candidates' places and counts the upper bits of their keys.
struct Collect {
  Selection s;
  bool again = false;  ///< only for groups with too few candidates

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0 || (again && chunk.state->again == 0)) return;
    const std::uint32_t found = list_places(team, chunk, chunk.state->least);
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
    row_once(team, [&]() {
      chunk.counts->candidates = found;
      chunk.counts->nonfinite = nonfinite;
      chunk.counts->largest = largest;
    });
    add_own(team, kBins, own, s.histogram(chunk.group));
  }

  /// Returns the number of candidates. Values that are not finite are among them.
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

}  // namespace deltapipe::codec::selection
