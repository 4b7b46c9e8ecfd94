// SPDX-License-Identifier: BSD-3-Clause
// Kernels of CodeStreams::encode, in the order of their launches.
#pragma once

#include "core/codec/entropy/code_groups.hpp"
#include "core/codec/entropy/folding.hpp"
#include "core/codec/entropy/rans.hpp"

namespace deltapipe::codec::stream_kernels {

/// Fewest codes for each symbol of a table of folded codes: a table has about a byte per symbol.
inline constexpr int kCodesPerSymbol = 256;
/// Largest number of bytes before a part's lengths.
inline constexpr int kHeadBytes = kFoldingBytes + kTableBytes;
/// Neighbouring symbols of a row that are counted separately, so that equal ones need not wait.
inline constexpr int kHistograms = 4;

/// Extremes of a group's codes: the largest, and 255 - the smallest.
struct Extremes {
  std::uint32_t largest;
  std::uint32_t distance;
};

/// Computes extremes(group) over a stream's rows.
struct FindExtremes {
  CodeGroups groups;
  CodeRows rows;
  Extremes* extremes;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int stream = team.league_rank();
    const int g = groups.group_of(stream);
    const int first = groups.first_row(groups.of[g], stream);
    const int last = first + groups.rows(groups.of[g], stream);
    std::uint8_t largest = 0, distance = 0;
    for (int r = first; r < last; ++r) {
      const std::uint8_t* codes = rows.row(r);
      largest = row_max(team, groups.channels, largest, [=](int c) { return codes[c]; });
      distance = row_max(team, groups.channels, distance,
                         [=](int c) { return static_cast<std::uint8_t>(255 - codes[c]); });
    }
    row_once(team, [&]() {
      atomic_max(&extremes[g].largest, std::uint32_t{largest});
      atomic_max(&extremes[g].distance, std::uint32_t{distance});
    });
  }
};

/// Chooses foldings(group): as many codes per symbol as fit, if there are enough codes for a table
/// of that size.
struct ChooseFoldings {
  CodeGroups groups;
  const Extremes* extremes;
  Folding* foldings;

  KOKKOS_INLINE_FUNCTION void operator()(const int g) const {
    if (groups.of[g].rows == 0) return;
    const auto first = static_cast<std::int32_t>(255 - extremes[g].distance);
    Folding folding{first, static_cast<std::int32_t>(extremes[g].largest) - first + 1, 1};
    const std::int64_t codes = std::int64_t{groups.of[g].rows} * groups.channels;
    for (int fold = 2; fold <= kMostFolded; fold *= 2) {
      const Folding next{folding.first, folding.range, fold};
      if (next.is_valid() && codes >= std::int64_t{kCodesPerSymbol} * next.symbols())
        folding = next;
    }
    foldings[g] = folding;
  }
};

/// Converts codes to symbols, in place.
struct FoldRows {
  CodeGroups groups;
  CodeRows rows;
  const Folding* foldings;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int r = team.league_rank();
    const int g = groups.group_of_row(r);
    fold_row(team, foldings[g], groups.channels, rows.row(r));
  }
};

/// Adds the number of symbols s in a stream's rows to count(group, s).
struct CountSymbols {
  CodeGroups groups;
  CodeRows rows;
  const Folding* foldings;
  std::uint64_t* count;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int stream = team.league_rank();
    const int g = groups.group_of(stream);
    const int first = groups.first_row(groups.of[g], stream);
    const int last = first + groups.rows(groups.of[g], stream);
    std::uint64_t* sums = count + g * kSymbols;
    const int n = foldings[g].row_symbols(groups.channels);
    if constexpr (kHostExecution) {
      std::uint32_t histogram[kHistograms][kSymbols] = {};
      for (int r = first; r < last; ++r) {
        const std::uint8_t* codes = rows.row(r);
        int c = 0;
        for (; c + kHistograms <= n; c += kHistograms)
          for (int h = 0; h < kHistograms; ++h) ++histogram[h][codes[c + h]];
        for (; c < n; ++c) ++histogram[0][codes[c]];
      }
      for (int s = 0; s < kSymbols; ++s) {
        std::uint64_t sum = 0;
        for (int h = 0; h < kHistograms; ++h) sum += histogram[h][s];
        if (sum > 0) atomic_add(sums + s, sum);
      }
    } else {
      auto* histogram = static_cast<std::uint32_t*>(
          team.team_scratch(0).get_shmem(kSymbols * sizeof(std::uint32_t)));
      row_for_synced(team, kSymbols, [=](int s) { histogram[s] = 0; });
      for (int r = first; r < last; ++r) {
        const std::uint8_t* codes = rows.row(r);
        row_for(team, n, [=](int c) { atomic_add(histogram + codes[c], 1u); });
      }
      team.team_barrier();
      row_for(team, kSymbols, [=](int s) {
        if (histogram[s] > 0) atomic_add(sums + s, std::uint64_t{histogram[s]});
      });
    }
  }
};

/// Makes the tables of the groups with rows, for the encoder and as bytes, and table_bytes(group).
struct MakeTables {
  CodeGroups groups;
  const Folding* foldings;
  const std::uint64_t* count;
  EncoderSymbol* symbols;
  std::uint8_t* tables;
  std::uint64_t* table_bytes;

  KOKKOS_INLINE_FUNCTION void operator()(const int g) const {
    table_bytes[g] = 0;
    if (groups.of[g].rows == 0) return;
    std::uint32_t frequency[kSymbols];
    frequencies_of(count + g * kSymbols, frequency);
    std::uint32_t start = 0;
    for (int s = 0; s < kSymbols; ++s) {
      symbols[g * kSymbols + s] = EncoderSymbol::of(frequency[s], start);
      start += frequency[s];
    }
    std::uint8_t* bytes = tables + g * kHeadBytes;
    write_folding(foldings[g], bytes);
    table_bytes[g] = std::uint64_t{kFoldingBytes} +
                     static_cast<std::uint64_t>(write_table(frequency, bytes + kFoldingBytes));
  }
};

/// Encodes the streams. Stream s has the last length_S(s) words of its room.
struct EncodeStreams {
  CodeGroups groups;
  CodeRows rows;
  const Folding* foldings;
  const EncoderSymbol* symbols;
  std::uint16_t* words;
  std::size_t room;  ///< words per stream
  std::uint64_t* length_S;

  template <int ways>
  KOKKOS_FUNCTION void run(const int stream) const {
    const int g = groups.group_of(stream);
    const EncoderSymbol* const table = symbols + g * kSymbols;
    const int n = foldings[g].row_symbols(groups.channels);
    std::uint32_t state[ways];
    std::uint16_t* at[ways];
    int first[ways];
    for (int w = 0; w < ways; ++w) {
      state[w] = kLeastState;
      at[w] = words + (static_cast<std::size_t>(stream) + w + 1) * room;
      first[w] = groups.first_row(groups.of[g], stream + w);
    }
    for (int r = groups.rows(groups.of[g], stream) - 1; r >= 0; --r) {
      const std::uint8_t* codes[ways];
      for (int w = 0; w < ways; ++w) codes[w] = rows.row(first[w] + r);
      for (int c = n - 1; c >= 0; --c)
        for (int w = 0; w < ways; ++w) put_symbol(table[codes[w][c]], state[w], at[w]);
    }
    for (int w = 0; w < ways; ++w) {
      *--at[w] = static_cast<std::uint16_t>(state[w] >> 16);
      *--at[w] = static_cast<std::uint16_t>(state[w]);
      std::uint16_t* end = words + (static_cast<std::size_t>(stream) + w + 1) * room;
      length_S[stream + w] = static_cast<std::uint64_t>(end - at[w]);
    }
  }
  KOKKOS_INLINE_FUNCTION void operator()(const int i) const { run_ways(*this, groups, i); }
};

/// Replaces each stream's length by the number of words before it; [S + 1].
struct PlacesOfLengths {
  using value_type = std::uint64_t;
  std::uint64_t* place_S;
  int streams;

  KOKKOS_INLINE_FUNCTION void operator()(const int s, std::uint64_t& before, bool final) const {
    const std::uint64_t words = s < streams ? place_S[s] : 0;
    if (final) place_S[s] = before;
    before += words;
  }
};

/// Computes stream_words(group) from the places.
struct SumUp {
  CodeGroups groups;
  const std::uint64_t* place_S;
  std::uint64_t* stream_words;

  KOKKOS_INLINE_FUNCTION void operator()(const int g) const {
    const int first = groups.of[g].first_stream;
    stream_words[g] = place_S[first + groups.of[g].streams] - place_S[first];
  }
};

/// Writes the directory, the tables, and the zeros after the parts.
struct WriteHeads {
  CodeGroups groups;
  const std::uint8_t* tables;
  const std::uint64_t* table_bytes;
  std::uint8_t* payload;

  KOKKOS_INLINE_FUNCTION void operator()(const int g) const {
    const CodeGroup& group = groups.of[g];
    if (group.rows == 0) return;
    for (int i = 0; i < 4; ++i)
      payload[group.head + i] = static_cast<std::uint8_t>(group.size >> (8 * i));
    std::uint8_t* part = payload + group.part;
    const std::uint8_t* table = tables + g * kHeadBytes;
    if (group.size > 0)
      for (std::uint64_t i = 0; i < table_bytes[g]; ++i) part[i] = table[i];
    const std::uint64_t size = group.size > 0 ? group.size : packed_size(group, groups.channels);
    for (std::uint64_t i = size; i % 4 != 0; ++i) part[i] = 0;
  }
};

struct WriteStreams {
  CodeGroups groups;
  const std::uint64_t* table_bytes;
  const std::uint16_t* words;
  std::size_t room;
  const std::uint64_t* place_S;
  std::uint8_t* payload;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int stream = team.league_rank();
    const int g = groups.group_of(stream);
    const CodeGroup& group = groups.of[g];
    if (group.size == 0) return;
    auto* lengths = reinterpret_cast<std::uint16_t*>(payload + group.part + table_bytes[g]);
    const int length = static_cast<int>(place_S[stream + 1] - place_S[stream]);
    std::uint16_t* to = lengths + group.streams + (place_S[stream] - place_S[group.first_stream]);
    const std::uint16_t* from = words + (static_cast<std::size_t>(stream) + 1) * room - length;
    row_for(team, length, [=](int i) { to[i] = from[i]; });
    row_once(team,
             [&]() { lengths[stream - group.first_stream] = static_cast<std::uint16_t>(length); });
  }
};

/// Packs the rows of groups that are sent packed, from their symbols.
struct PackRows {
  CodeGroups groups;
  CodeRows rows;
  const Folding* foldings;
  std::uint8_t* payload;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int r = team.league_rank();
    const int g = groups.group_of_row(r);
    const CodeGroup& group = groups.of[g];
    if (group.size > 0) return;
    const int n = groups.channels;
    unfold_row(team, foldings[g], n, rows.row(r));
    pack_row(team, group.bits, n, rows.row(r),
             payload + group.part + packed_bytes(group.bits, n) * (r - group.first_row));
  }
};

}  // namespace deltapipe::codec::stream_kernels
