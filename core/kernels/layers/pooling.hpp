// SPDX-License-Identifier: BSD-3-Clause
// A sample's rows as one row, tanh, and values as rows.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/base/parallel/row.hpp"

namespace deltapipe {

/// first: the first row, such as BERT's [CLS]; mean: the mean of the valid rows; last: the last
/// valid row, which a causal model needs.
enum class Pooling { first, mean, last };

namespace pooling_kernels {

/// Rows [begin, end) of a sample.
struct RowRange {
  int begin, end;
};

/// Returns the rows that are pooled.
KOKKOS_FORCEINLINE_FUNCTION RowRange pooled_rows(Pooling pooling, int sample, int tokens,
                                                 const VectorRef<const std::int32_t>& length_B) {
  if (pooling == Pooling::first) return {0, 1};
  const int length = length_B.extent(0) > 0 ? length_B(sample) : tokens;
  return {pooling == Pooling::last ? length - 1 : 0, length};
}

}  // namespace pooling_kernels

/// y_BC = pooled rows of x_NC, whose samples have `tokens` rows and at least one valid one.
/// length_B: valid rows; empty: all of them.
template <class Real>
void pool_rows(const ExecSpace& exec, Pooling pooling, int tokens,
               const VectorRef<const std::int32_t>& length_B, const MatrixRef<const Real>& x_NC,
               const MatrixRef<Real>& y_BC) {
  const int channels = y_BC.extent_int(1);
  for_rows(
      "deltapipe::Pooling::forward", row_policy(exec, y_BC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int b = team.league_rank();
        const auto rows = pooling_kernels::pooled_rows(pooling, b, tokens, length_B);
        row_for(team, channels, [&](int c) {
          Real sum = 0;
          for (int t = rows.begin; t < rows.end; ++t) sum += x_NC(b * tokens + t, c);
          y_BC(b, c) = sum / (rows.end - rows.begin);
        });
      });
}

/// dx_NC from dy_BC: the gradients of rows that are not pooled are 0.
template <class Real>
void pool_rows_backward(const ExecSpace& exec, Pooling pooling, int tokens,
                        const VectorRef<const std::int32_t>& length_B,
                        const MatrixRef<const Real>& dy_BC, const MatrixRef<Real>& dx_NC) {
  const int channels = dy_BC.extent_int(1);
  for_rows(
      "deltapipe::Pooling::backward", row_policy(exec, dx_NC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int b = team.league_rank() / tokens, t = team.league_rank() % tokens;
        const auto rows = pooling_kernels::pooled_rows(pooling, b, tokens, length_B);
        const bool is_pooled = t >= rows.begin && t < rows.end;
        const int count = rows.end - rows.begin;
        Real* const dx = &dx_NC(team.league_rank(), 0);
        row_for(team, channels, [&](int c) { dx[c] = is_pooled ? dy_BC(b, c) / count : Real(0); });
      });
}

/// x_BC = tanh(x_BC)
template <class Real>
void tanh_forward(const ExecSpace& exec, const MatrixRef<Real>& x_BC) {
  for_elements(
      "deltapipe::Tanh::forward", exec, x_BC.extent_int(0), x_BC.extent_int(1),
      DELTAPIPE_LAMBDA(int b, int c) { x_BC(b, c) = std::tanh(x_BC(b, c)); });
}

/// Replaces dL/dy in dx_BC by dL/dx, from y = tanh(x).
template <class Real>
void tanh_backward(const ExecSpace& exec, const MatrixRef<const Real>& y_BC,
                   const MatrixRef<Real>& dx_BC) {
  for_elements(
      "deltapipe::Tanh::backward", exec, dx_BC.extent_int(0), dx_BC.extent_int(1),
      DELTAPIPE_LAMBDA(int b, int c) { dx_BC(b, c) *= 1 - y_BC(b, c) * y_BC(b, c); });
}

/// y_NF = values, as Real.
template <class Real>
void values_of_rows(const ExecSpace& exec, const VectorRef<const float>& values,
                    const MatrixRef<Real>& y_NF) {
  const int width = y_NF.extent_int(1);
  for_elements(
      "deltapipe::Values::rows", exec, y_NF.extent_int(0), width, DELTAPIPE_LAMBDA(int n, int f) {
        y_NF(n, f) = static_cast<Real>(values(static_cast<std::size_t>(n) * width + f));
      });
}

}  // namespace deltapipe
