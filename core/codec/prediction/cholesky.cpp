// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/prediction/cholesky.hpp"

#include <algorithm>
#include <cmath>

#include "core/base/error.hpp"
#include "core/base/parallel/row.hpp"
#include "core/kernels/gemm/gemm.hpp"

namespace deltapipe {

namespace {

/// Rows and columns that are worked on between two products.
constexpr int kBlock = 32;

/// a := its factor, lower triangle; one team.
struct FactorBlock {
  MatrixRef<float> a;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int n = a.extent_int(0);
    for (int k = 0; k < n; ++k) {
      row_once(team, [&]() { a(k, k) = std::sqrt(a(k, k)); });
      if constexpr (!kHostExecution) team.team_barrier();
      row_for_synced(team, n - k - 1, [&](int i) { a(k + 1 + i, k) /= a(k, k); });
      row_for_synced(team, n - k - 1, [&](int i) {
        for (int j = 0; j <= i; ++j) a(k + 1 + i, k + 1 + j) -= a(k + 1 + i, k) * a(k + 1 + j, k);
      });
    }
  }
};

/// Each row x of the panel := the solution of x factor^T = x.
struct SolvePanelRow {
  MatrixRef<const float> factor;
  MatrixRef<float> panel;

  KOKKOS_INLINE_FUNCTION void operator()(int row) const {
    const int n = factor.extent_int(0);
    for (int c = 0; c < n; ++c) {
      float value = panel(row, c);
      for (int k = 0; k < c; ++k) value -= panel(row, k) * factor(c, k);
      panel(row, c) = value / factor(c, c);
    }
  }
};

/// A tile of columns of b := factor^-1 b, or factor^-T b where `transposed`.
struct SolveColumns {
  MatrixRef<const float> factor;
  MatrixRef<float> b;
  bool transposed;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int n = factor.extent_int(0);
    const int first = team.league_rank() * kColumnTile;
    const int width = b.extent_int(1) - first < kColumnTile ? b.extent_int(1) - first : kColumnTile;
    for (int i = 0; i < n; ++i) {
      const int c = transposed ? n - 1 - i : i;
      for (int j = 0; j < i; ++j) {
        const int k = transposed ? n - 1 - j : j;
        const float weight = transposed ? factor(k, c) : factor(c, k);
        const float* from = &b(k, first);
        float* to = &b(c, first);
        row_for(team, width, [=](int l) { to[l] -= weight * from[l]; });
      }
      float* row = &b(c, first);
      const float pivot = factor(c, c);
      row_for_synced(team, width, [=](int l) { row[l] /= pivot; });
    }
  }
};

template <class T>
MatrixRef<T> block_of(const MatrixRef<T>& matrix, int row, int rows, int column, int columns) {
  const std::size_t stride = matrix.extent(1);
  return strided_matrix(matrix.data() + row * stride + column, rows, columns, stride);
}

}  // namespace

void cholesky_solve(const ExecSpace& exec, const MatrixRef<float>& a_CC,
                    const MatrixRef<float>& b_CK) {
  const int n = a_CC.extent_int(0);
  const int columns = b_CK.extent_int(1);
  DELTAPIPE_ASSERT(a_CC.extent_int(1) == n && b_CK.extent_int(0) == n, "shape of a system");
  for (int k = 0; k < n; k += kBlock) {
    const int width = std::min(kBlock, n - k);
    const int below = n - k - width;
    const auto diagonal = block_of(a_CC, k, width, k, width);
    for_rows("deltapipe::Cholesky::factor", row_policy(exec, 1), FactorBlock{diagonal});
    const auto b = rows_of(b_CK, k, width);
    for_rows("deltapipe::Cholesky::forward", column_policy(exec, columns),
             SolveColumns{diagonal, b, false});
    if (below == 0) continue;
    const auto panel = block_of(a_CC, k + width, below, k, width);
    for_range("deltapipe::Cholesky::panel", exec, below, SolvePanelRow{diagonal, panel});
    gemm(exec, Transpose::no, Transpose::yes, -1.0f, panel, panel, 1.0f,
         block_of(a_CC, k + width, below, k + width, below));
    gemm(exec, Transpose::no, Transpose::no, -1.0f, panel, b, 1.0f,
         rows_of(b_CK, k + width, below));
  }
  for (int end = n; end > 0;) {
    const int k = (end - 1) / kBlock * kBlock;
    const int width = end - k;
    const auto b = rows_of(b_CK, k, width);
    if (end < n)
      gemm(exec, Transpose::yes, Transpose::no, -1.0f, block_of(a_CC, end, n - end, k, width),
           rows_of(b_CK, end, n - end), 1.0f, b);
    for_rows("deltapipe::Cholesky::backward", column_policy(exec, columns),
             SolveColumns{block_of(a_CC, k, width, k, width), b, true});
    end = k;
  }
}

}  // namespace deltapipe
