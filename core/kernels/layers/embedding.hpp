// SPDX-License-Identifier: BSD-3-Clause
// Token and position embeddings. Tokens are indices into a table of rows: the whole vocabulary, or
// only the rows that a step's tokens need.
#pragma once

#include <type_traits>

#include "core/base/parallel/row.hpp"
#include "core/kernels/halves.hpp"

namespace deltapipe {

namespace embedding_kernels {

/// Rows as pointers.
template <class Real>
struct Rows {
  MatrixRef<const Real> values;
  KOKKOS_FORCEINLINE_FUNCTION const Real* operator()(int u) const { return &values(u, 0); }
};
struct RowsInHalves {
  MatrixRef<const Bf16> rounded;
  MatrixRef<const std::uint16_t> lower;
  KOKKOS_FORCEINLINE_FUNCTION RowHalves operator()(int u) const {
    return {&rounded(u, 0), &lower(u, 0)};
  }
};

/// Calls use(rows) with the table's rows in their format.
template <class Real, class Use>
void with_rows(const RowTable<Real>& table, const Use& use) {
  if constexpr (std::is_same_v<Real, float>)
    if (table.in_halves()) return use(RowsInHalves{table.rounded, table.lower});
  use(Rows<Real>{table.values});
}

template <class Real, class TokenRows>
void forward(const ExecSpace& exec, const VectorRef<const std::int32_t>& index_N, int tokens,
             const TokenRows& token_row, const MatrixRef<const Real>& position_TC,
             const MatrixRef<Real>& x_NC) {
  const int channels = x_NC.extent_int(1);
  for_rows(
      "deltapipe::Embedding::forward", row_policy(exec, x_NC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank();
        const auto token = token_row(index_N(n));
        const Real* const position = &position_TC(n % tokens, 0);
        Real* const x = &x_NC(n, 0);
        row_for(team, channels, [&](int c) { x[c] = token[c] + position[c]; });
      });
}

template <class Real, class TokenRows>
void gather(const ExecSpace& exec, const TokenRows& token_row,
            const VectorRef<const std::int32_t>& token_U, const MatrixRef<Real>& rows_UC) {
  for_elements(
      "deltapipe::Embedding::gatherRows", exec, rows_UC.extent_int(0), rows_UC.extent_int(1),
      DELTAPIPE_LAMBDA(int u, int c) { rows_UC(u, c) = token_row(token_U(u))[c]; });
}

}  // namespace embedding_kernels

/// x_NC = table_UC(index_N) + position_TC(n mod T)
template <class Real>
void embedding_forward(const ExecSpace& exec, const VectorRef<const std::int32_t>& index_N,
                       int tokens, const RowTable<Real>& table_UC,
                       const MatrixRef<const Real>& position_TC, const MatrixRef<Real>& x_NC) {
  embedding_kernels::with_rows(table_UC, [&](const auto& token_row) {
    embedding_kernels::forward(exec, index_N, tokens, token_row, position_TC, x_NC);
  });
}

/// dposition_TC(t) = sum over samples of dx_NC, added to dposition_TC if `accumulate` is set.
/// Otherwise positions after T are set to zero.
template <class Real>
void position_gradient(const ExecSpace& exec, const MatrixRef<const Real>& dx_NC, int tokens,
                       bool accumulate, const MatrixRef<Real>& dposition_TC) {
  const int samples = dx_NC.extent_int(0) / tokens;
  for_elements(
      "deltapipe::Embedding::positionGradient", exec, dposition_TC.extent_int(0),
      dx_NC.extent_int(1), DELTAPIPE_LAMBDA(int t, int c) {
        Real sum = 0;
        if (t < tokens)
          for (int b = 0; b < samples; ++b) sum += dx_NC(b * tokens + t, c);
        dposition_TC(t, c) = accumulate ? dposition_TC(t, c) + sum : sum;
      });
}

/// dtable_UC(u) = sum of dx_NC over the rows whose token is row u of the table. These rows are
/// row_of(first_of_U(u) ... first_of_U(u+1)). They are gathered in a fixed order instead of
/// scattered by atomics, so that sums do not depend on the schedule.
template <class Real>
void token_gradient(const ExecSpace& exec, const MatrixRef<const Real>& dx_NC,
                    const VectorRef<const std::int32_t>& first_of_U,
                    const VectorRef<const std::int32_t>& row_of, const MatrixRef<Real>& dtable_UC) {
  const int channels = dx_NC.extent_int(1);
  for_rows(
      "deltapipe::Embedding::tokenGradient", row_policy(exec, dtable_UC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int u = team.league_rank();
        row_for(team, channels, [&](int c) { dtable_UC(u, c) = 0; });
        for (int i = first_of_U(u); i < first_of_U(u + 1); ++i) {
          const Real* const dx = &dx_NC(row_of(i), 0);
          row_for(team, channels, [&](int c) { dtable_UC(u, c) += dx[c]; });
        }
      });
}

/// rows_UC(u) = table_VC(token_U(u))
template <class Real>
void gather_rows(const ExecSpace& exec, const RowTable<Real>& table_VC,
                 const VectorRef<const std::int32_t>& token_U, const MatrixRef<Real>& rows_UC) {
  embedding_kernels::with_rows(table_VC, [&](const auto& token_row) {
    embedding_kernels::gather(exec, token_row, token_U, rows_UC);
  });
}

/// table_VC(token_U(u)) += rows_UC(u); the tokens differ from one another.
template <class Real>
void add_rows(const ExecSpace& exec, const VectorRef<const std::int32_t>& token_U,
              const MatrixRef<const Real>& rows_UC, const MatrixRef<Real>& table_VC) {
  for_elements(
      "deltapipe::Embedding::addRows", exec, rows_UC.extent_int(0), rows_UC.extent_int(1),
      DELTAPIPE_LAMBDA(int u, int c) { table_VC(token_U(u), c) += rows_UC(u, c); });
}

}  // namespace deltapipe
