// SPDX-License-Identifier: BSD-3-Clause
// Bounds the errors that error feedback adds to a sample's values. They date from the sample's last
// visit, an epoch ago. If the values have shrunk since, or only a few of them are sent, the errors
// outgrow the values: most of the message is then the past, and training stops. For the values x
// and the errors e of a sample,
//
//   c = C(x + a e)        a = min(1, most |x| / |e|)
//   e := x + a e - c
//
// The bound has no effect while the values keep their size: errors of codes then stay below |x|,
// and errors of TopK, which sends a value about every 1 / p visits, stay below |x| / p.
#pragma once

#include <cmath>
#include <cstddef>

#include "core/base/observe/memory_ledger.hpp"
#include "core/codec/quantizer/sample_memory.hpp"
#include "core/codec/rows/channel_steps.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_format.hpp"

namespace deltapipe::codec {

/// Sums of the squares of a row's values and of its errors.
struct RowSquares {
  double values, errors;
};

template <class M>
struct SquareRows {
  RowArguments a;
  RowFormats formats;
  RowSquares* squares_N;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const SampleEntry& sample = a.samples[index / a.tokens];
    const bool has_errors = formats.format[sample.format].uses_memory;
    RowSquares squares{0, 0};
    if (has_errors && index % a.tokens < sample.tokens) {
      const int n = a.channels;
      const RowBuffers buffers = RowBuffers::of(team, n);
      const float* error = scaled_values_of<M>(team, row_of(a, index), buffers.work, buffers.codes);
      const float* x = a.x + static_cast<std::size_t>(index) * n;
      const auto square = [](float value) {
        return is_nonfinite(value) ? 0.0 : static_cast<double>(value) * value;
      };
      squares.values = row_sum<double>(team, n, [&](int c) { return square(x[c]); });
      squares.errors = row_sum<double>(team, n, [&](int c) { return square(error[c]); });
    }
    row_once(team, [&]() { squares_N[index] = squares; });
  }
};

struct ErrorShares {
  const RowSquares* squares_N;
  int tokens;
  double most;
  float* share_B;

  KOKKOS_INLINE_FUNCTION void operator()(const int b) const {
    double values = 0, errors = 0;
    for (int n = b * tokens; n < (b + 1) * tokens; ++n) {
      values += squares_N[n].values;
      errors += squares_N[n].errors;
    }
    const double allowed = most * most * values;
    share_B[b] = errors > allowed ? static_cast<float>(std::sqrt(allowed / errors)) : 1.0f;
  }
};

class ErrorBound {
 public:
  /// `most` is the largest ratio of the errors' norm to that of the values.
  ErrorBound(const CodecShape& shape, double most)
      : most_(most),
        squares_N_(uninitialized("deltapipe::ErrorBound::squares"),
                   shape.encodes() ? shape.max_samples * shape.tokens : 0),
        share_B_(uninitialized("deltapipe::ErrorBound::shares"),
                 shape.encodes() ? shape.max_samples : 0) {}

  /// Computes a for each sample and returns it in device memory, valid until the next call. Samples
  /// whose format has no memory get 1. M is the type of the records' rows.
  template <class M>
  const float* shares(const ExecSpace& exec, const RowArguments& a, const RowFormats& formats) {
    for_rows("deltapipe::ErrorBound::squares",
             row_policy(exec, a.sample_count * a.tokens, RowBuffers::bytes(a.channels)),
             SquareRows<M>{a, formats, squares_N_.data()});
    for_range("deltapipe::ErrorBound::shares", exec, a.sample_count,
              ErrorShares{squares_N_.data(), a.tokens, most_, share_B_.data()});
    return share_B_.data();
  }
  std::size_t memory_bytes() const { return bytes_of_view(squares_N_) + bytes_of_view(share_B_); }

 private:
  double most_;
  Vector<RowSquares> squares_N_;
  Vector<float> share_B_;
};

}  // namespace deltapipe::codec
