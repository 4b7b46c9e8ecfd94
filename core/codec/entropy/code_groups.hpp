// SPDX-License-Identifier: BSD-3-Clause
// Rows of codes in a crossing and the streams that they form, as the kernels of CodeStreams see
// them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/parallel/row.hpp"
#include "core/codec/quantizer/packing.hpp"

namespace deltapipe::codec {

inline constexpr int kCodeFormats = 2;
/// In place of a format: each row has the table of its class.
inline constexpr int kByClass = kCodeFormats;
inline constexpr int kRowClasses = 8;
/// Number of tables: one per format, one per class.
inline constexpr int kCodeTables = kCodeFormats + kRowClasses;

inline constexpr std::size_t kWordBytes = sizeof(std::uint16_t);

/// Rows of one table in a crossing.
struct CodeGroup {
  std::int32_t first_row;  ///< index into the list of rows
  std::int32_t rows;
  std::int32_t first_stream;
  std::int32_t streams;
  std::int32_t bits;   ///< bits of a packed code
  std::uint64_t part;  ///< offset of its part in the payload, a multiple of 4
  std::uint64_t head;  ///< offset of its directory word in the payload
  std::uint64_t size;  ///< bytes of a coded part, an even number; 0: packed codes
};

struct CodeGroups {
  CodeGroup of[kCodeTables];
  std::int32_t streams;  ///< number of streams of all groups
  std::int32_t rows_per_stream;
  std::int32_t channels;

  KOKKOS_INLINE_FUNCTION int group_of(int stream) const {
    int g = 0;
    while (stream >= of[g].first_stream + of[g].streams) ++g;
    return g;
  }
  KOKKOS_INLINE_FUNCTION int group_of_row(int row) const {
    int g = 0;
    while (row >= of[g].first_row + of[g].rows) ++g;
    return g;
  }
  int rows() const { return of[kCodeTables - 1].first_row + of[kCodeTables - 1].rows; }
  /// Returns the stream's first row, as an index into the list of rows.
  KOKKOS_INLINE_FUNCTION int first_row(const CodeGroup& group, int stream) const {
    return group.first_row + (stream - group.first_stream) * rows_per_stream;
  }
  KOKKOS_INLINE_FUNCTION int rows(const CodeGroup& group, int stream) const {
    const int left = group.rows - (stream - group.first_stream) * rows_per_stream;
    return left < rows_per_stream ? left : rows_per_stream;
  }
};

/// The list of rows, and a byte for each of their codes.
struct CodeRows {
  const std::int32_t* row_N;
  std::uint8_t* codes;
  std::size_t row_bytes;

  KOKKOS_INLINE_FUNCTION std::uint8_t* row(int n) const { return codes + row_N[n] * row_bytes; }
};

/// Returns the bytes of a group's packed codes.
KOKKOS_INLINE_FUNCTION std::uint64_t packed_size(const CodeGroup& group, int channels) {
  return packed_bytes(group.bits, channels) * static_cast<std::uint64_t>(group.rows);
}

/// Streams that a thread of a processor works on at once: while one waits for its products, the
/// others proceed.
inline constexpr int kWays = kHostExecution ? 4 : 1;

/// Calls run<kWays> if kWays consecutive streams have the same number of rows of one group, else
/// run<1>.
template <class Streams>
KOKKOS_INLINE_FUNCTION void run_ways(const Streams& streams, const CodeGroups& groups, int i) {
  if constexpr (kWays > 1) {
    const int first = i * kWays;
    const int last = first + kWays < groups.streams ? first + kWays : groups.streams;
    const int g = groups.group_of(first);
    if (last - first == kWays && g == groups.group_of(last - 1) &&
        groups.rows(groups.of[g], first) == groups.rows(groups.of[g], last - 1)) {
      streams.template run<kWays>(first);
    } else {
      for (int stream = first; stream < last; ++stream) streams.template run<1>(stream);
    }
  } else {
    streams.template run<1>(i);
  }
}

inline int runs_of_streams(const CodeGroups& groups) {
  return (groups.streams + kWays - 1) / kWays;
}

}  // namespace deltapipe::codec
