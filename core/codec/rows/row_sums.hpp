// SPDX-License-Identifier: BSD-3-Clause
// Sums of an encoder over a row, for CodecStatistics.
#pragma once

#include <cstdint>

#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"
#include "core/codec/rows/row_codec.hpp"

namespace deltapipe::codec {

/// Returns the sum of the squares of value(c) over a row. Squares of magnitudes from 1.8e19 on
/// leave fp32.
template <class Value>
KOKKOS_INLINE_FUNCTION double row_squares(const RowMember& team, int n, const Value& value) {
  const auto squares = row_sum<float>(team, n, [=](int c) {
    const auto v = static_cast<float>(value(c));
    return v * v;
  });
  if (squares <= kMaxFloat) return squares;
  return row_sum<double>(team, n, [=](int c) {
    const double v = value(c);
    return v * v;
  });
}

/// Adds a row's sums: of values that are not finite in x and, if measured, of the error of `seen`.
/// `largest` is a magnitude, as bits, that is finite only if all of x are; above `most` it is lost.
KOKKOS_INLINE_FUNCTION void add_row_sums(const RowMember& team, const RowArguments& a, int index,
                                         const float* x, std::uint32_t largest, float most,
                                         const float* seen) {
  const int n = a.channels;
  std::uint32_t nonfinite = 0;
  if (largest >= kInfinityBits)
    nonfinite = row_sum<std::uint32_t>(team, n, [=](int c) { return is_nonfinite(x[c]); });
  double error2 = 0;
  double signal2 = 0;
  if (a.measure) {
    error2 = row_squares(team, n, [=](int c) {
      const float error = x[c] - seen[c];
      return is_nonfinite(x[c]) ? 0.0f : error;
    });
    signal2 = row_squares(team, n, [=](int c) { return finite_or_zero(x[c]); });
  }
  row_once(team, [&]() {
    CodecStatistics& sums = a.sums[index];
    sums.nonfinite += nonfinite;
    if (largest > bits_of(most)) atomic_set(a.lost, 1u);
    if (!a.measure) return;
    sums.error2 += error2;
    sums.signal2 += signal2;
    sums.elements += n;
  });
}

}  // namespace deltapipe::codec
