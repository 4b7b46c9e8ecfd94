// SPDX-License-Identifier: BSD-3-Clause
// The choice among a selection's candidates, by the lower bits of the k-th largest key.
#pragma once

#include "core/codec/topk/bit_counting.hpp"
#include "core/codec/topk/compaction.hpp"
#include "core/codec/topk/selection.hpp"

namespace deltapipe::codec::selection {

/// Divides the candidates. Those whose keys' upper bits are larger than the threshold's are chosen,
/// those with the same upper bits are undecided. Counts the next bits of the latter.
struct Divide {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const std::uint32_t* keys = chunk.keys;
    std::uint16_t* undecided = chunk.undecided;
    const std::uint32_t prefix = chunk.state->threshold;
    const int found = static_cast<int>(chunk.counts->candidates);
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
      const auto is_open = [=](int i) { return is_undecided(keys[i]); };
      row_scan<std::uint32_t>(team, found, is_open, [=](int i, std::uint32_t place) {
        if (is_open(i) > 0) undecided[place] = static_cast<std::uint16_t>(i);
      });
      open = row_sum<std::uint32_t>(team, found, is_open);
      larger = row_sum<std::uint32_t>(team, found, [=](int i) { return is_larger(keys[i]); });
    }
    row_once(team, [&]() {
      chunk.counts->larger = larger;
      chunk.counts->undecided = open;
    });
    count_bins(
        team, static_cast<int>(open), bins_of(1),
        [=](int i) { return (without_sign(keys[undecided[i]]) >> shift_of(1)) & 1023u; },
        s.histogram(chunk.group));
  }
};

/// Counts the last bits of the undecided candidates whose other bits are the threshold's.
struct CountLastBits {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const std::uint32_t* keys = chunk.keys;
    const std::uint16_t* undecided = chunk.undecided;
    const std::uint32_t prefix = chunk.state->threshold;
    count_bins(
        team, static_cast<int>(chunk.counts->undecided), bins_of(2),
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
    const std::uint32_t threshold = chunk.state->threshold;
    const int open = static_cast<int>(chunk.counts->undecided);
    const auto above = row_sum<std::uint32_t>(
        team, open, [=](int i) { return without_sign(keys[undecided[i]]) > threshold ? 1u : 0u; });
    const auto equal = row_sum<std::uint32_t>(
        team, open, [=](int i) { return without_sign(keys[undecided[i]]) == threshold ? 1u : 0u; });
    row_once(team, [&]() {
      chunk.counts->larger += above;
      chunk.counts->equal = equal;
    });
  }
};

/// Computes the number of ties that each chunk sends and the place of its first chosen position.
struct PlaceChunks {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int g = team.league_rank();
    const int chunks = Selection::chunks_of(s.group_G[g]);
    ChunkCounts* counts = s.counts_GC + static_cast<std::size_t>(g) * s.max_chunks;
    const std::uint32_t wanted = s.state_G[g].wanted;
    row_scan<std::uint32_t>(
        team, chunks, [=](int c) { return counts[c].equal; },
        [=](int c, std::uint32_t before) {
          const std::uint32_t rest = before < wanted ? wanted - before : 0;
          counts[c].ties = counts[c].equal < rest ? counts[c].equal : rest;
        });
    const auto chosen = [=](int c) { return counts[c].larger + counts[c].ties; };
    row_scan<std::uint32_t>(team, chunks, chosen,
                            [=](int c, std::uint32_t before) { counts[c].place = before; });
    const auto total = row_sum<std::uint32_t>(team, chunks, chosen);
    const auto nonfinite =
        row_sum<std::uint32_t>(team, chunks, [=](int c) { return counts[c].nonfinite; });
    const std::uint32_t largest =
        row_max(team, chunks, 0u, [=](int c) { return counts[c].largest; });
    row_once(team, [&]() {
      s.chosen.count_G[g] = total;
      s.nonfinite_G[g] = nonfinite;
      s.largest_G[g] = largest;
    });
  }
};

/// Writes the chosen positions and, if required, their values.
struct WriteChosen {
  Selection s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const Chunk chunk = Chunk::of(s, team.league_rank());
    if (chunk.width == 0) return;
    const std::uint32_t* keys = chunk.keys;
    const std::uint16_t* candidates = chunk.candidates;
    const std::uint32_t threshold = chunk.state->threshold;
    const std::uint32_t ties = chunk.counts->ties;
    const int found = static_cast<int>(chunk.counts->candidates);
    const std::uint32_t first = chunk.first;
    const std::size_t place = chunk.group * s.chosen.stride + chunk.counts->place;
    std::uint32_t* chosen = s.chosen.position + place;
    float* values = s.chosen_values == nullptr ? nullptr : s.chosen_values + place;
    // Keys of values that are not finite are those of other numbers.
    const float* x = chunk.counts->nonfinite > 0 ? chunk.x : nullptr;
    if constexpr (kHostExecution) {
      const int taken = gather(chunk, found, threshold, ties);
      row_for(team, taken, [=](int i) { chosen[i] = first + candidates[i]; });
      if (values == nullptr) return;
      if (x == nullptr)
        row_for(team, taken, [=](int i) { values[i] = float_of(keys[i]); });
      else
        row_for(team, taken, [=](int i) { values[i] = x[candidates[i]]; });
    } else {
      // The lower half counts the larger ones before, the upper half the equal ones.
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

}  // namespace deltapipe::codec::selection
