// SPDX-License-Identifier: BSD-3-Clause
// Kernels of CodeStreams::decode, in the order of their launches. They trust nothing that they
// read: anything that does not fit marks the payload as damaged.
#pragma once

#include "core/codec/entropy/code_groups.hpp"
#include "core/codec/entropy/folding.hpp"
#include "core/codec/entropy/rans.hpp"

namespace deltapipe::codec::stream_kernels {

enum Soundness : std::uint64_t { sound, damaged };

KOKKOS_INLINE_FUNCTION void mark_damaged(std::uint64_t* soundness) {
  atomic_set(soundness, std::uint64_t{damaged});
}

/// Makes the decoders' tables and table_bytes(group), which is 0, with damage, if a part has no
/// table or no room for its streams' lengths.
struct ReadTables {
  CodeGroups groups;
  const std::uint8_t* payload;
  Folding* foldings;
  std::uint32_t* starts;
  std::uint32_t* slots;
  std::uint64_t* table_bytes;
  std::uint64_t* soundness;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int g = team.league_rank();
    const CodeGroup& group = groups.of[g];
    std::uint32_t* start = starts + g * (kSymbols + 1);
    std::uint64_t* bytes = table_bytes + g;
    const std::uint8_t* part = payload + group.part;
    Folding* folding = foldings + g;
    row_once(team, [&]() {
      *bytes = 0;
      if (group.size == 0) return;
      std::uint64_t taken = 0;
      if (group.size > kFoldingBytes && read_folding(part, 1 << group.bits, *folding)) {
        const int table =
            read_table(part + kFoldingBytes, group.size - kFoldingBytes, folding->symbols(), start);
        taken = table > 0 ? static_cast<std::uint64_t>(kFoldingBytes + table) : 0;
      }
      const std::uint64_t lengths = kWordBytes * static_cast<std::uint64_t>(group.streams);
      if (taken > 0 && taken + lengths <= group.size)
        *bytes = taken;
      else
        mark_damaged(soundness);
    });
    team.team_barrier();
    if (*bytes == 0) return;
    std::uint32_t* table = slots + g * kFrequencySum;
    row_for(team, kSymbols, [=](int s) {
      const std::uint32_t frequency = start[s + 1] - start[s];
      for (std::uint32_t place = 0; place < frequency; ++place)
        table[start[s] + place] = decoder_slot(s, frequency, place);
    });
  }
};

/// Sets place_S(s) to the number of words of all streams before s, by the payload's lengths.
struct PlacesInPayload {
  using value_type = std::uint64_t;
  CodeGroups groups;
  const std::uint64_t* table_bytes;
  const std::uint8_t* payload;
  std::uint64_t* place_S;

  KOKKOS_INLINE_FUNCTION void operator()(const int s, std::uint64_t& before, bool final) const {
    if (final) place_S[s] = before;
    if (s == groups.streams) return;
    const int g = groups.group_of(s);
    const CodeGroup& group = groups.of[g];
    if (table_bytes[g] == 0) return;
    before += reinterpret_cast<const std::uint16_t*>(payload + group.part +
                                                     table_bytes[g])[s - group.first_stream];
  }
};

struct DecodeStreams {
  CodeGroups groups;
  CodeRows rows;
  const Folding* foldings;
  const std::uint64_t* table_bytes;
  const std::uint32_t* slots;
  const std::uint64_t* place_S;
  const std::uint8_t* payload;
  std::uint64_t* soundness;

  /// Returns true if the streams of a group fill its part with the lengths that they state.
  KOKKOS_INLINE_FUNCTION bool fills(int g) const {
    const CodeGroup& group = groups.of[g];
    const std::uint64_t words =
        place_S[group.first_stream + group.streams] - place_S[group.first_stream] + group.streams;
    return table_bytes[g] > 0 && table_bytes[g] + kWordBytes * words == group.size;
  }

  template <int ways>
  KOKKOS_FUNCTION void run(const int stream) const {
    const int g = groups.group_of(stream);
    const CodeGroup& group = groups.of[g];
    if (group.size == 0) return;
    if (!fills(g)) return mark_damaged(soundness);
    const std::uint32_t* const table = slots + g * kFrequencySum;
    const int n = foldings[g].row_symbols(groups.channels);
    const std::uint16_t* const words =
        reinterpret_cast<const std::uint16_t*>(payload + group.part + table_bytes[g]) +
        group.streams;
    // Words are read up to the end of the payload's part: a stream that runs into the next one does
    // not end where it should.
    const std::uint16_t* const last =
        reinterpret_cast<const std::uint16_t*>(payload + group.part + group.size) - 1;
    std::uint32_t state[ways];
    const std::uint16_t* at[ways];
    int first[ways];
    for (int w = 0; w < ways; ++w) {
      at[w] = words + (place_S[stream + w] - place_S[group.first_stream]);
      if (place_S[stream + w + 1] - place_S[stream + w] < kStateWords)
        return mark_damaged(soundness);
      state[w] = at[w][0] | static_cast<std::uint32_t>(at[w][1]) << 16;
      if (state[w] < kLeastState || state[w] >= kLeastState << 16) return mark_damaged(soundness);
      at[w] += kStateWords;
      first[w] = groups.first_row(group, stream + w);
    }
    for (int r = 0; r < groups.rows(group, stream); ++r) {
      std::uint8_t* codes[ways];
      for (int w = 0; w < ways; ++w) codes[w] = rows.row(first[w] + r);
      for (int c = 0; c < n;) {
        // A code reads at most one word. Close to the last word, codes are read one at a time.
        std::ptrdiff_t words_left = last - at[0];
        for (int w = 1; w < ways; ++w)
          words_left = last - at[w] < words_left ? last - at[w] : words_left;
        const int chunk_end = words_left < n - c ? c + static_cast<int>(words_left) : n;
        for (; c < chunk_end; ++c)
          for (int w = 0; w < ways; ++w) codes[w][c] = take_symbol(table, state[w], at[w]);
        if (words_left > 0) continue;
        for (int w = 0; w < ways; ++w) {
          const std::uint16_t* here = at[w] <= last ? at[w] : last;
          const std::uint16_t* next = here;
          codes[w][c] = take_symbol(table, state[w], next);
          at[w] += next - here;
        }
        ++c;
      }
    }
    for (int w = 0; w < ways; ++w) {
      const std::uint16_t* const end =
          words + (place_S[stream + w + 1] - place_S[group.first_stream]);
      if (state[w] != kLeastState || at[w] != end) mark_damaged(soundness);
    }
  }
  KOKKOS_INLINE_FUNCTION void operator()(const int i) const { run_ways(*this, groups, i); }
};

/// Sets the codes of all rows, from packed ones or from the symbols of streams.
struct UnpackRows {
  CodeGroups groups;
  CodeRows rows;
  const Folding* foldings;
  const std::uint64_t* table_bytes;
  const std::uint8_t* payload;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int r = team.league_rank();
    const int g = groups.group_of_row(r);
    const CodeGroup& group = groups.of[g];
    const int n = groups.channels;
    if (group.size == 0)
      unpack_row(team, group.bits, n,
                 payload + group.part + packed_bytes(group.bits, n) * (r - group.first_row),
                 rows.row(r));
    else if (table_bytes[g] > 0)
      unfold_row(team, foldings[g], n, rows.row(r));
  }
};

}  // namespace deltapipe::codec::stream_kernels
