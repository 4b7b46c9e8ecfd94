// SPDX-License-Identifier: BSD-3-Clause
// Sums of a tall matrix' columns. On devices teams sum parts of the rows, and then the parts are
// added in order. On processors a thread sums all rows of some columns. Sums do not depend on the
// order of the teams or on the number of threads.
#pragma once

#include <cstddef>

#include "core/base/parallel/row.hpp"

namespace deltapipe {

/// Rows that one team sums.
inline constexpr int kColumnTreeRows = 256;

inline int column_tree_parts(int rows) {
  return rows > kColumnTreeRows ? (rows + kColumnTreeRows - 1) / kColumnTreeRows : 1;
}

/// Returns the elements of the workspace for sums, or pairs of them, over `rows` and `columns`.
/// They suffice for fewer rows and columns as well.
inline std::size_t column_tree_workspace(int rows, int columns) {
  return std::size_t{2} * column_tree_parts(rows) * columns;
}

/// Two sums over the same rows.
template <class Real>
struct SumPair {
  Real first = 0, second = 0;

  KOKKOS_FORCEINLINE_FUNCTION SumPair& operator+=(const SumPair& other) {
    first += other.first;
    second += other.second;
    return *this;
  }
};

/// Calls store(c, sum over n in [0, rows) of body(n, c)) for all columns; Sum is Real or
/// SumPair<Real>. With more than kColumnTreeRows rows and a workspace, two kernels sum parts and
/// then add them. Otherwise one team sums all rows of its columns in one kernel.
template <class Sum, class Real, class Body, class Store>
void column_tree_sums(const char* label, const ExecSpace& exec, int rows, int columns,
                      const VectorRef<Real>& workspace, const Body& body, const Store& store) {
  static_assert(sizeof(Sum) <= 2 * sizeof(Real));
  const int tiles = (columns + kColumnTile - 1) / kColumnTile;
  const int parts =
      column_tree_workspace(rows, columns) <= workspace.extent(0) ? column_tree_parts(rows) : 1;
  const int rows_of_part = parts > 1 ? kColumnTreeRows : rows;
  Sum* const partial = reinterpret_cast<Sum*>(workspace.data());
  for_rows(
      label, row_policy(exec, tiles * parts, column_lanes_bytes(sizeof(Sum))),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int part = team.league_rank() / tiles;
        const int first = part * rows_of_part;
        const int end = first + rows_of_part < rows ? first + rows_of_part : rows;
        column_sums_by_lanes<Sum>(team, team.league_rank() % tiles, columns, first, end, body,
                                  [&](int c, const Sum& sum) {
                                    if (parts == 1)
                                      store(c, sum);
                                    else
                                      partial[static_cast<std::size_t>(part) * columns + c] = sum;
                                  });
      });
  if (parts == 1) return;
  for_range(
      label, exec, columns, DELTAPIPE_LAMBDA(int c) {
        Sum sum{};
        for (int part = 0; part < parts; ++part)
          sum += partial[static_cast<std::size_t>(part) * columns + c];
        store(c, sum);
      });
}

namespace detail {

/// Columns that a thread sums at a time, and rows per load and store of a sum.
inline constexpr int kHostColumns = 256, kHostRows = 4;

/// Sums of some columns; the two sums of a pair are in separate arrays, so that they vectorise.
template <class Sum>
struct HostColumns {
  Sum of[kHostColumns] = {};

  KOKKOS_FORCEINLINE_FUNCTION Sum get(int i) const { return of[i]; }
  KOKKOS_FORCEINLINE_FUNCTION void set(int i, const Sum& sum) { of[i] = sum; }
};
template <class Real>
struct HostColumns<SumPair<Real>> {
  Real first[kHostColumns] = {}, second[kHostColumns] = {};

  KOKKOS_FORCEINLINE_FUNCTION SumPair<Real> get(int i) const { return {first[i], second[i]}; }
  KOKKOS_FORCEINLINE_FUNCTION void set(int i, const SumPair<Real>& sum) {
    first[i] = sum.first;
    second[i] = sum.second;
  }
};

/// Adds rows [n, n + kRows) of columns [first, first + width).
template <int kRows, class Sum, class Body>
void add_rows(int n, int first, int width, const Body& body, HostColumns<Sum>& sums) {
  DELTAPIPE_INDEPENDENT_ITERATIONS
  for (int i = 0; i < width; ++i) {
    Sum sum = sums.get(i);
    for (int row = 0; row < kRows; ++row) sum += body(n + row, first + i);
    sums.set(i, sum);
  }
}

/// Calls store(c, sum) for columns [first, end); rows are added in order.
template <class Sum, class Body, class Store>
void host_column_sums(int first, int end, int rows, const Body& body, const Store& store) {
  for (int tile = first; tile < end; tile += kHostColumns) {
    const int width = end - tile < kHostColumns ? end - tile : kHostColumns;
    HostColumns<Sum> sums;
    int n = 0;
    for (; n + kHostRows <= rows; n += kHostRows) add_rows<kHostRows>(n, tile, width, body, sums);
    for (; n < rows; ++n) add_rows<1>(n, tile, width, body, sums);
    for (int i = 0; i < width; ++i) store(tile + i, sums.get(i));
  }
}

}  // namespace detail

/// Calls store(c, sum over n in [0, rows) of body(n, c)) for all columns; Sum is Real or
/// SumPair<Real>. With a workspace, processors sum in parts, as devices do.
template <class Sum, class Real, class Body, class Store>
void sum_columns(const char* label, const ExecSpace& exec, int rows, int columns,
                 const VectorRef<Real>& tree_workspace, const Body& body, const Store& store) {
  if constexpr (kTeamExecution)
    if (tree_workspace.extent(0) == 0) {
      constexpr int kLine = 16;  // columns of a cache line
      as_kernel(label, exec, [&] {
        HostTeam::instance().share((columns + kLine - 1) / kLine, 1, [&](int first, int end) {
          detail::host_column_sums<Sum>(
              first * kLine, end * kLine < columns ? end * kLine : columns, rows, body, store);
        });
      });
      return;
    }
  column_tree_sums<Sum>(label, exec, rows, columns, tree_workspace, body, store);
}

}  // namespace deltapipe
