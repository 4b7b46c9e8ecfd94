// SPDX-License-Identifier: BSD-3-Clause
// What an encoder sums up over a row, for CodecStatistics.
#pragma once

#include <cstdint>

#include "core/base/number_formats.hpp"
#include "core/base/row.hpp"
#include "core/codec/row_codec.hpp"

namespace deltapipe::codec {

/// Adds a row's sums: of what is not finite in x and, where measured, of the error of `seen`.
/// largest: a magnitude, as bits, that is finite only if all of x are.
KOKKOS_INLINE_FUNCTION void add_row_sums(const RowMember& team, const RowArguments& a, int index,
                                         const float* x, std::uint32_t largest, const float* seen) {
  const int n = a.channels;
  std::uint32_t nonfinite = 0;
  if (largest >= kInfinityBits)
    nonfinite = row_sum<std::uint32_t>(team, n, [=](int c) { return is_nonfinite(x[c]); });
  float error2 = 0;
  float signal2 = 0;
  if (a.measure) {
    error2 = row_sum<float>(team, n, [=](int c) {
      const float error = x[c] - seen[c];
      return is_nonfinite(x[c]) ? 0.0f : error * error;
    });
    signal2 =
        row_sum<float>(team, n, [=](int c) { return is_nonfinite(x[c]) ? 0.0f : x[c] * x[c]; });
  }
  RowSums* row_sums = a.sums + index;
  const bool measure = a.measure;
  row_once(team, [=]() {
    row_sums->nonfinite += nonfinite;
    if (!measure) return;
    row_sums->error2 += error2;
    row_sums->signal2 += signal2;
    row_sums->elements += n;
  });
}

}  // namespace deltapipe::codec
