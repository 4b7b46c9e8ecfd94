// SPDX-License-Identifier: BSD-3-Clause
// Rows of samples that are sent as chosen values: their records, and the values that the receiver
// sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/codec/rows/quantized_rows.hpp"
#include "core/codec/topk/sparse_payload.hpp"

namespace deltapipe::codec {

/// Sets y to x + factor * (the records' values) in the rows of samples that are sent sparse.
template <class M>
struct AddRecords {
  SparseArguments s;
  float factor;  ///< 1 or -1
  float* y;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int n = s.a.channels;
    const int b = index / s.a.tokens;
    if (!s.is_sparse(b) || index % s.a.tokens >= s.a.samples[b].tokens) return;
    const RowBuffers buffers = RowBuffers::of(team, n);
    const MemoryRow record = row_of(s.a, index);
    float* sum = y + static_cast<std::size_t>(index) * n;
    if (s.uses_memory(b))
      load_scaled<M>(team, record, sum, buffers.codes);
    else
      NoMemory::load(team, record, sum, buffers.codes);
    const float* row = s.a.x + static_cast<std::size_t>(index) * n;
    const float share = factor * record.share;
    row_for(team, n, [=](int c) { sum[c] = row[c] + share * sum[c]; });
  }
};

/// Returns the number of ascending positions that are below another one.
KOKKOS_INLINE_FUNCTION std::uint32_t places_below(const std::uint32_t* positions,
                                                  std::uint32_t count, std::uint32_t position) {
  std::uint32_t first = 0;
  while (count > 0) {
    const std::uint32_t half = count / 2;
    const bool below = positions[first + half] < position;
    first = below ? first + half + 1 : first;
    count = below ? count - half - 1 : half;
  }
  return first;
}

/// Subtracts the values that were sent from y, at the chosen positions.
struct SubtractValues {
  SparseArguments s;
  int rows;
  float* y;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const ChosenRow row = ChosenRow::of(s, team.league_rank(), rows);
    if (row.width == 0) return;
    const ValueBuffers buffers = ValueBuffers::of(team);
    float* sent = buffers.row.work;
    read_values(team, s.values, row.header.count, row.r, row.header.exponent, buffers, row.block,
                sent);
    float* values = y + s.first_of(row.b);
    const std::uint32_t* position = row.position;
    row_for(team, row.width, [=](int i) { values[position[i]] -= sent[i]; });
  }
};

/// Stores rows of records: valid rows with `store`, padding of first visits as zeros.
template <class M, class Store>
KOKKOS_FORCEINLINE_FUNCTION void store_row(const RowMember& team, const SparseArguments& s,
                                           const Store& store) {
  const int index = team.league_rank();
  const int b = index / s.a.tokens;
  if (!s.is_sparse(b)) return;
  const RowBuffers buffers = RowBuffers::of(team, s.a.channels);
  const MemoryRow record = row_of(s.a, index);
  const bool is_padding = record.t >= s.a.samples[b].tokens;
  if (!s.uses_memory(b)) clear_unwritten<M>(team, record, is_padding, buffers);
  if (!is_padding) store(index, record, buffers);
}

/// Sets y to what the receiver sees: memories or zeros and, up to the largest numbers, what was
/// sent. Padding and the rows of absent samples become zeros. The sender also adds the sums of
/// x - y, and memories become y.
template <class M>
struct SeeRows {
  SparseArguments s;
  const float* sent;  ///< in the order of the positions
  const float* x;     ///< null at the receiver
  float* y;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int n = s.a.channels;
    const int b = index / s.a.tokens;
    const int t = index % s.a.tokens;
    const bool is_there = b < s.a.sample_count;
    if (is_there && !s.is_sparse(b)) return;
    const std::size_t first = static_cast<std::size_t>(index) * n;
    float* row = y + first;
    const bool is_valid = is_there && t < s.a.samples[b].tokens;
    if (std::is_same_v<M, NoMemory> || !is_valid || !s.uses_memory(b)) {
      row_for_synced(team, n, [=](int c) { row[c] = 0.0f; });
    } else {
      const RowBuffers buffers = RowBuffers::of(team, n);
      load_scaled<M>(team, row_of(s.a, index), row, buffers.codes);
    }
    if (!is_there) return;
    if (is_valid)
      add_sent(team, b, static_cast<std::uint32_t>(t) * static_cast<std::uint32_t>(n), row);
    const float* wanted = x == nullptr ? nullptr : x + first;
    if (wanted != nullptr && is_valid)
      add_row_sums(team, s.a, index, wanted, largest_of_row(team, n, wanted),
                   largest_kept<M>(s.a.scale), row);
    if constexpr (!std::is_same_v<M, NoMemory>)
      store_row<M>(team, s, [&](int, const MemoryRow& record, const RowBuffers& buffers) {
        store_scaled<M>(team, record, row, buffers.work, buffers.codes);
      });
  }

  /// Adds the values sent in a row. Positions of a row are contiguous.
  KOKKOS_INLINE_FUNCTION void add_sent(const RowMember& team, int b, std::uint32_t first,
                                       float* row) const {
    const std::uint32_t* position = s.positions_of(b);
    const std::uint32_t count = s.count_of(b);
    const std::uint32_t end = first + static_cast<std::uint32_t>(s.a.channels);
    const std::uint32_t begin = places_below(position, count, first);
    const float* values = sent + s.sent_of(b);
    const auto add = [=](std::uint32_t i) {
      float* value = row + (position[i] - first);
      *value = changed(*value, 1.0f, values[i]);
    };
    if constexpr (kHostExecution) {
      for (std::uint32_t i = begin; i < count && position[i] < end; ++i) add(i);
    } else {
      const std::uint32_t rest = places_below(position + begin, count - begin, end);
      row_for_synced(team, static_cast<int>(rest),
                     [=](int i) { add(begin + static_cast<std::uint32_t>(i)); });
    }
  }
};

/// Sets errors to y, the rest of x + e.
template <class M>
struct StoreErrors {
  SparseArguments s;
  const float* x;
  const float* y;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    store_row<M>(team, s, [&](int index, const MemoryRow& record, const RowBuffers& buffers) {
      const int n = record.channels;
      const float* left = y + static_cast<std::size_t>(index) * n;
      const float* wanted = x + static_cast<std::size_t>(index) * n;
      float* work = buffers.work;
      if (s.uses_memory(index / s.a.tokens))
        load_scaled<M>(team, record, work, buffers.codes);
      else
        NoMemory::load(team, record, work, buffers.codes);
      row_for_synced(team, n, [=](int c) { work[c] = wanted[c] - (left[c] - work[c]); });
      add_row_sums(team, s.a, index, wanted, largest_of_row(team, n, wanted), kMaxFloat, work);
      const float scale = s.a.scale;
      row_for_synced(team, n, [=](int c) {
        const float left_out = left[c] / scale;
        work[c] = is_nonfinite(left_out) ? 0.0f : left_out;
      });
      M::store(team, record, work, buffers.codes);
    });
  }
};

}  // namespace deltapipe::codec
