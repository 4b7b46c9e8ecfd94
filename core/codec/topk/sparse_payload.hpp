// SPDX-License-Identifier: BSD-3-Clause
// The payload of samples that are sent as chosen values: a header for each sample, if any sample is
// sent this way; the blocks of samples that are sent whole, at a first visit; then the blocks of
// the others, each with its positions and its values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/codec/rows/channel_steps.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_format.hpp"
#include "core/codec/topk/chosen_values.hpp"
#include "core/codec/topk/forward_masks.hpp"
#include "core/codec/topk/position_coding.hpp"
#include "core/codec/topk/topk_selection.hpp"

namespace deltapipe::codec {

/// Header of a sample; zeros if its rows are sent in another way.
struct SampleHeader {
  std::uint32_t count;  ///< number of positions
  std::uint32_t words;  ///< words of the positions
  PositionFormat format;
  std::uint8_t bits;      ///< as in PositionCoding
  std::int16_t exponent;  ///< exponent of fp16 values' power of two; else 0

  KOKKOS_INLINE_FUNCTION PositionCoding coding() const { return {format, bits, words}; }
};
static_assert(sizeof(SampleHeader) == 12);

/// Arguments that the kernels share.
struct SparseArguments {
  RowArguments a;
  RowFormats formats;
  ValueCoding values;
  double part;
  Positions chosen;
  bool is_held;            ///< the chosen positions are kept for gradients
  Positions forward;       ///< positions of the micro-batch's activations; position null: none
  std::uint64_t* block_B;  ///< offset of each sample's block in the payload

  /// Returns true if sample b's values are those at its activations' positions.
  KOKKOS_INLINE_FUNCTION bool follows(int b) const {
    return forward.position != nullptr && forward.count_G[b] != ForwardMasks::kNoMask;
  }
  KOKKOS_INLINE_FUNCTION const std::uint32_t* positions_of(int b) const {
    return follows(b) ? forward.of(b) : chosen.of(b);
  }
  KOKKOS_INLINE_FUNCTION std::uint32_t count_of(int b) const {
    return follows(b) ? forward.count_G[b] : chosen.count_G[b];
  }
  /// Returns the place of a sample's values among those of all positions.
  KOKKOS_INLINE_FUNCTION std::size_t sent_of(int b) const { return b * chosen.stride; }
  /// Returns the entry of chosen.count_G for a sample with this number of positions.
  KOKKOS_INLINE_FUNCTION std::uint32_t held_count(int b, std::uint32_t count) const {
    return is_held && !is_sparse(b) ? ForwardMasks::kNoMask : count;
  }
  KOKKOS_INLINE_FUNCTION bool is_sparse(int b) const {
    return formats.format[a.samples[b].format].kind == RowKind::sparse;
  }
  KOKKOS_INLINE_FUNCTION bool uses_memory(int b) const {
    return formats.format[a.samples[b].format].uses_memory;
  }
  /// Returns the number of sample b's values from which to choose.
  KOKKOS_INLINE_FUNCTION std::uint32_t size_of(int b) const {
    if (!is_sparse(b)) return 0;
    return static_cast<std::uint32_t>(a.samples[b].tokens) * static_cast<std::uint32_t>(a.channels);
  }
  KOKKOS_INLINE_FUNCTION std::uint64_t first_of(int b) const {
    return static_cast<std::uint64_t>(b) * a.tokens * a.channels;
  }
  KOKKOS_INLINE_FUNCTION SampleHeader* headers() const {
    return reinterpret_cast<SampleHeader*>(a.payload);
  }
  KOKKOS_INLINE_FUNCTION std::uint64_t block_bytes(const SampleHeader& header) const {
    return std::uint64_t{4} * header.words + values.bytes_of(header.count);
  }
};

/// Writes the headers: the coding of positions, and the exponent of fp16 values.
struct WriteHeaders {
  SparseArguments s;
  const float* y;
  const std::uint32_t* nonfinite_B;  ///< null: counted elsewhere
  const std::uint32_t* largest_B;    ///< largest magnitudes of the values; null: unknown

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int b = team.league_rank();
    const std::uint32_t size = s.size_of(b);
    const bool follows = s.follows(b);
    SampleHeader header{};
    if (size > 0) {
      const std::uint32_t* position = s.positions_of(b);
      header.count = s.count_of(b);
      const int count = static_cast<int>(header.count);
      const PositionCoding coding = follows ? PositionCoding{PositionFormat::forward, 0, 0}
                                            : choose_positions(team, position, count, size);
      header.words = coding.words;
      header.format = coding.format;
      header.bits = coding.bits;
      if (s.values.kind == ChosenValues::fp16)
        header.exponent = static_cast<std::int16_t>(
            half_exponent(largest_B != nullptr && !follows ? largest_B[b]
                                                           : largest_of(team, b, position, count)));
    }
    row_once(team, [&]() {
      s.headers()[b] = header;
      if (s.is_held) s.chosen.count_G[b] = s.held_count(b, header.count);
      if (nonfinite_B != nullptr && !follows && size > 0)
        count_nonfinite(s.a, b * s.a.tokens, nonfinite_B[b]);
    });
  }

  KOKKOS_INLINE_FUNCTION std::uint32_t largest_of(const RowMember& team, int b,
                                                  const std::uint32_t* position, int count) const {
    const float* values = y + s.first_of(b);
    return row_max(team, count, 0u, [=](int i) { return finite_magnitude(values[position[i]]); });
  }
};

/// Places the blocks of sparse samples one after another from `first` on. Sets *end to the end of
/// the last one.
struct PlaceBlocks {
  SparseArguments s;
  std::uint64_t first;
  std::uint64_t* end;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const auto bytes = [&](int b) { return s.block_bytes(s.headers()[b]); };
    row_scan<std::uint64_t>(team, s.a.sample_count, bytes, [&](int b, std::uint64_t before) {
      s.block_B[b] = first + before;
      if (b + 1 == s.a.sample_count) *end = first + before + bytes(b);
    });
  }
};

struct WritePositions {
  SparseArguments s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int b = team.league_rank();
    const SampleHeader header = s.headers()[b];
    write_positions(team, header.coding(), s.positions_of(b), static_cast<int>(header.count),
                    reinterpret_cast<std::uint32_t*>(s.a.payload + s.block_B[b]));
  }
};

/// A team's row of a sample's chosen values.
struct ChosenRow {
  int b;
  std::uint32_t r;
  SampleHeader header;
  int width;  ///< 0: no such row
  const std::uint32_t* position;
  std::size_t place;  ///< place of its values among those of all positions
  std::uint8_t* block;

  KOKKOS_INLINE_FUNCTION static ChosenRow of(const SparseArguments& s, int index, int rows) {
    ChosenRow row;
    row.b = index / rows;
    row.r = static_cast<std::uint32_t>(index % rows);
    row.header = s.headers()[row.b];
    row.width = row.r < ValueCoding::rows_of(row.header.count)
                    ? ValueCoding::width_of(row.header.count, row.r)
                    : 0;
    const std::size_t first = static_cast<std::size_t>(row.r) * ValueCoding::kRow;
    row.position = s.positions_of(row.b) + first;
    row.place = s.sent_of(row.b) + first;
    row.block = s.a.payload + s.block_B[row.b] + std::size_t{4} * row.header.words;
    return row;
  }
};

struct WriteValues {
  SparseArguments s;
  int rows;                    ///< largest number of rows of values per sample
  const float* chosen_values;  ///< in the order of the positions; null: read from y
  const float* y;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const ChosenRow row = ChosenRow::of(s, team.league_rank(), rows);
    if (row.width == 0) return;
    const ValueBuffers buffers = ValueBuffers::of(team);
    const float* values = y + s.first_of(row.b);
    const std::uint32_t* position = row.position;
    float* taken = buffers.x;
    const float* x = taken;
    if (chosen_values == nullptr || s.follows(row.b))
      row_for_synced(team, row.width, [=](int i) { taken[i] = values[position[i]]; });
    else
      x = chosen_values + row.place;
    write_values(team, s.values, s.a, s.a.samples[row.b].id, row.header.count, row.r,
                 row.header.exponent, x, buffers, row.block);
  }
};

/// Sets `sent` to the values sent at the chosen positions, in the order of the positions.
struct ReadValues {
  SparseArguments s;
  int rows;
  float* sent;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const ChosenRow row = ChosenRow::of(s, team.league_rank(), rows);
    if (row.width == 0) return;
    const ValueBuffers buffers = ValueBuffers::of(team);
    read_values(team, s.values, row.header.count, row.r, row.header.exponent, buffers, row.block,
                sent + row.place);
  }
};

/// Counts values that are not finite in samples without a selection.
struct CountNonfinite {
  SparseArguments s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int b = index / s.a.tokens;
    if (!s.follows(b) || index % s.a.tokens >= s.a.samples[b].tokens) return;
    const float* x = s.a.x + static_cast<std::size_t>(index) * s.a.channels;
    const auto count = row_sum<std::uint32_t>(team, s.a.channels,
                                              [=](int c) { return is_nonfinite(x[c]) ? 1u : 0u; });
    row_once(team, [&]() { count_nonfinite(s.a, index, count); });
  }
};

/// Reads positions from an untrusted payload of at least `first` bytes. Sets *wrong to 1 if this
/// codec cannot have written it, and *end to its length.
struct ReadPositions {
  SparseArguments s;
  std::uint64_t first;
  std::uint64_t bytes;
  std::uint32_t* wrong;
  std::uint64_t* end;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int b = team.league_rank();
    std::uint64_t block = first;
    for (int before = 0; before < b; ++before) block += s.block_bytes(s.headers()[before]);
    const SampleHeader header = s.headers()[b];
    const std::uint64_t block_end = block + s.block_bytes(header);
    const bool fits = is_possible(b, header) && block_end <= bytes;
    row_once(team, [&]() {
      s.chosen.count_G[b] = s.held_count(b, header.count);
      s.block_B[b] = block;
      if (b + 1 == s.a.sample_count) *end = block_end;
      if (!fits) atomic_set(wrong, 1u);
    });
    if (!fits || header.count == 0 || s.follows(b)) return;
    read_positions(team, header.coding(), reinterpret_cast<std::uint32_t*>(s.a.payload + block),
                   header.count, s.size_of(b), s.chosen.of(b), wrong);
  }

  KOKKOS_INLINE_FUNCTION bool is_possible(int b, const SampleHeader& header) const {
    const std::uint32_t size = s.size_of(b);
    if (size == 0)
      return header.count == 0 && header.words == 0 && header.format == PositionFormat::all &&
             header.bits == 0 && header.exponent == 0;
    const int exponent = header.exponent;
    const bool is_half = s.values.kind == ChosenValues::fp16;
    if (exponent < (is_half ? -126 : 0) || exponent > (is_half ? 126 : 0)) return false;
    if (s.follows(b))
      return header.count == s.forward.count_G[b] && header.words == 0 && header.bits == 0 &&
             header.format == PositionFormat::forward;
    return header.count <= count_of_part(s.part, size) &&
           is_position_coding(header.coding(), header.count, size);
  }
};

}  // namespace deltapipe::codec
