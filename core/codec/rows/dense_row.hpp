// SPDX-License-Identifier: BSD-3-Clause
// One row as fp32 or fp16 values and back, as first visits travel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/codec/quantizer/half_rows.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_format.hpp"

namespace deltapipe::codec {

/// A row of fp32 values in a sample's payload block.
KOKKOS_INLINE_FUNCTION float* float_row(std::uint8_t* block, int t, int n) {
  return reinterpret_cast<float*>(block) + static_cast<std::size_t>(t) * n;
}

/// A first visit's values, sent as fp32 or fp16. Only finite ones may enter a memory: NaN becomes
/// 0, infinities the largest number. work := what was sent.
KOKKOS_INLINE_FUNCTION void send_dense_row(const RowMember& team, const RowArguments& a,
                                           RowKind kind, const SampleEntry& sample, int t,
                                           const float* x, float* work) {
  const int n = a.channels;
  std::uint8_t* block = a.payload + sample.payload;
  if (kind == RowKind::fp32) {
    float* values = float_row(block, t, n);
    row_for_synced(team, n, [=](int c) { values[c] = work[c] = saturate(x[c], kMaxFloat); });
    return;
  }
  const HalfRow row = HalfRow::of(block, sample.tokens, t, n);
  write_finite_half_row(team, n, x, half_exponent_of_row(team, n, x), row);
  read_half_row(team, n, row, work);
}

KOKKOS_INLINE_FUNCTION void receive_dense_row(const RowMember& team, const RowArguments& a,
                                              RowKind kind, const SampleEntry& sample, int t,
                                              float* work) {
  const int n = a.channels;
  std::uint8_t* block = a.payload + sample.payload;
  if (kind == RowKind::fp32) {
    const float* values = float_row(block, t, n);
    row_for_synced(team, n, [=](int c) { work[c] = values[c]; });
  } else {
    read_half_row(team, n, HalfRow::of(block, sample.tokens, t, n), work);
  }
}

}  // namespace deltapipe::codec
