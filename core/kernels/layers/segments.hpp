// SPDX-License-Identifier: BSD-3-Clause
// Embedding of segments: a small table whose rows are added to those of a text's tokens.
#pragma once

#include "core/base/parallel/row.hpp"
#include "core/kernels/layers/column_sums.hpp"

namespace deltapipe {

/// x_NC += table_SC(segment_N)
template <class Real>
void add_segments(const ExecSpace& exec, const VectorRef<const std::int32_t>& segment_N,
                  const MatrixRef<const Real>& table_SC, const MatrixRef<Real>& x_NC) {
  for_elements(
      "deltapipe::Segments::add", exec, x_NC.extent_int(0), x_NC.extent_int(1),
      DELTAPIPE_LAMBDA(int n, int c) { x_NC(n, c) += table_SC(segment_N(n), c); });
}

/// dtable_SC(s) = sum of dx_NC over the rows of segment s, added to dtable_SC if `accumulate` is
/// set. Sums are those of sum_columns().
template <class Real>
void segment_gradient(const ExecSpace& exec, const VectorRef<const std::int32_t>& segment_N,
                      const MatrixRef<const Real>& dx_NC, bool accumulate,
                      const MatrixRef<Real>& dtable_SC,
                      const VectorRef<Real>& tree_workspace = {}) {
  const int rows = dx_NC.extent_int(0), channels = dx_NC.extent_int(1);
  for (int s = 0; s < dtable_SC.extent_int(0); ++s)
    sum_columns<Real>(
        "deltapipe::Segments::gradient", exec, rows, channels, tree_workspace,
        DELTAPIPE_LAMBDA(int n, int c) { return segment_N(n) == s ? dx_NC(n, c) : Real(0); },
        DELTAPIPE_LAMBDA(int c, Real sum) {
          dtable_SC(s, c) = accumulate ? dtable_SC(s, c) + sum : sum;
        });
}

}  // namespace deltapipe
