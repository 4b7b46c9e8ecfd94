// SPDX-License-Identifier: BSD-3-Clause
// Values at chosen positions, in the order of the positions: fp32; fp16 with one power of two for
// all; or codes in rows of kRow values. The payload of codes holds the steps of all rows (2 bytes
// for every `tile` values of a row), then the packed codes of all rows. The last row may be
// shorter.
#pragma once

#include "core/codec/rows/quantized_rows.hpp"

namespace deltapipe::codec {

struct ValueCoding {
  static constexpr int kRow = 1024;

  ChosenValues kind = ChosenValues::fp16;
  RowFormat codes;  ///< format of a row

  static ValueCoding of(const CodecSettings& settings) {
    CodecSettings codes = settings;
    codes.scale = ScaleKind::tile;
    return {settings.values, code_format(codes, kRow)};
  }

  KOKKOS_INLINE_FUNCTION static std::uint32_t rows_of(std::uint32_t count) {
    return (count + (kRow - 1)) / kRow;
  }
  /// Returns the number of values in row r.
  KOKKOS_INLINE_FUNCTION static int width_of(std::uint32_t count, std::uint32_t r) {
    const std::uint32_t rest = count - r * kRow;
    return static_cast<int>(rest < kRow ? rest : kRow);
  }
  KOKKOS_INLINE_FUNCTION std::uint64_t steps_of(std::uint32_t count) const {
    const std::uint32_t segment = static_cast<std::uint32_t>(codes.segment);
    return static_cast<std::uint64_t>(count / kRow) * codes.segments +
           (count % kRow + segment - 1) / segment;
  }
  /// Returns the bytes of `count` values.
  KOKKOS_INLINE_FUNCTION std::uint64_t used_bytes_of(std::uint32_t count) const {
    if (kind == ChosenValues::fp32) return std::uint64_t{4} * count;
    if (kind == ChosenValues::fp16) return std::uint64_t{2} * count;
    return 2 * steps_of(count) + count / kRow * packed_bytes(codes.bits, kRow) +
           packed_bytes(codes.bits, static_cast<int>(count % kRow));
  }
  /// Returns the bytes of `count` values, padded to a multiple of 4.
  KOKKOS_INLINE_FUNCTION std::uint64_t bytes_of(std::uint32_t count) const {
    return round_up(used_bytes_of(count), 4);
  }
  KOKKOS_INLINE_FUNCTION static float* floats(std::uint8_t* block) {
    return reinterpret_cast<float*>(block);
  }
  KOKKOS_INLINE_FUNCTION static std::uint16_t* halves(std::uint8_t* block) {
    return reinterpret_cast<std::uint16_t*>(block);
  }
  KOKKOS_INLINE_FUNCTION CodeRow code_row(std::uint8_t* block, std::uint32_t count,
                                          std::uint32_t r) const {
    return {halves(block) + static_cast<std::size_t>(r) * codes.segments,
            block + 2 * steps_of(count) + r * packed_bytes(codes.bits, kRow)};
  }
};

/// Buffers of one row of values: x, and those of its codes.
struct ValueBuffers {
  float* x;
  RowBuffers row;

  static std::size_t bytes() {
    return RowBuffers::bytes(ValueCoding::kRow) + sizeof(float) * ValueCoding::kRow + 64;
  }
  KOKKOS_INLINE_FUNCTION static ValueBuffers of(const RowMember& team) {
    ValueBuffers buffers;
    buffers.row = RowBuffers::of(team, ValueCoding::kRow);
    buffers.x =
        static_cast<float*>(team.team_scratch(0).get_shmem(sizeof(float) * ValueCoding::kRow));
    return buffers;
  }
};

/// Writes x as row r of `count` values, and padding after the last row. NaN is written as 0, an
/// infinity as the largest number or code. `a` and `sample` key random numbers.
KOKKOS_INLINE_FUNCTION void write_values(const RowMember& team, const ValueCoding& coding,
                                         const RowArguments& a, std::uint64_t sample,
                                         std::uint32_t count, std::uint32_t r, int exponent,
                                         const float* x, const ValueBuffers& buffers,
                                         std::uint8_t* block) {
  const int n = ValueCoding::width_of(count, r);
  const std::size_t first = static_cast<std::size_t>(r) * ValueCoding::kRow;
  if (coding.kind == ChosenValues::fp32) {
    float* values = ValueCoding::floats(block) + first;
    row_for_synced(team, n, [=](int i) { values[i] = saturate(x[i], kMaxFloat); });
  } else if (coding.kind == ChosenValues::fp16) {
    finite_halves_of_row(team, n, x, power_of_two(exponent), ValueCoding::halves(block) + first);
  } else {
    float* work = buffers.row.work;
    row_for_synced(team, n, [=](int i) { work[i] = 0.0f; });
    RowArguments rows = a;
    rows.channels = ValueCoding::kRow;
    if (coding.codes.stochastic)
      fill_random(team, rows, sample, static_cast<int>(r), buffers.row.random);
    quantize_values(team, coding.codes, n, x, largest_of_row(team, n, x), buffers.row,
                    coding.code_row(block, count, r));
  }
  if (r + 1 == ValueCoding::rows_of(count))
    clear_block_end(team, block, coding.used_bytes_of(count));
}

/// Sets work to row r as it is seen.
KOKKOS_INLINE_FUNCTION void read_values(const RowMember& team, const ValueCoding& coding,
                                        std::uint32_t count, std::uint32_t r, int exponent,
                                        const ValueBuffers& buffers, std::uint8_t* block,
                                        float* work) {
  const int n = ValueCoding::width_of(count, r);
  const std::size_t first = static_cast<std::size_t>(r) * ValueCoding::kRow;
  if (coding.kind == ChosenValues::fp32) {
    const float* values = ValueCoding::floats(block) + first;
    row_for_synced(team, n, [=](int i) { work[i] = values[i]; });
  } else if (coding.kind == ChosenValues::fp16) {
    floats_of_halves(team, n, ValueCoding::halves(block) + first, power_of_two(-exponent), work);
  } else {
    row_for_synced(team, n, [=](int i) { work[i] = 0.0f; });
    dequantize_values(team, coding.codes, n, coding.code_row(block, count, r), work, 0.0f,
                      buffers.row.codes);
  }
}

}  // namespace deltapipe::codec
