// SPDX-License-Identifier: BSD-3-Clause
// Sums of a tall matrix' columns as devices make them: teams sum parts of the rows, and then the
// parts are added in their order. No sum depends on which team came first.
#pragma once

#include <cstddef>

#include "core/base/row.hpp"

namespace deltapipe {

/// Rows that one team sums.
inline constexpr int kColumnTreeRows = 256;

inline int column_tree_parts(int rows) {
  return rows > kColumnTreeRows ? (rows + kColumnTreeRows - 1) / kColumnTreeRows : 1;
}

/// Elements of the workspace for sums, or pairs of them, over so many rows and columns; enough for
/// fewer of both as well.
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

/// store(c, sum over n in [0, rows) of body(n, c)) for all columns, Sum being Real or a SumPair of
/// it. One kernel, or two with more than kColumnTreeRows rows; these need the workspace, without
/// whose elements one team sums all rows of its columns.
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
      KOKKOS_LAMBDA(const RowMember& team) {
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
      label, exec, columns, KOKKOS_LAMBDA(int c) {
        Sum sum{};
        for (int part = 0; part < parts; ++part)
          sum += partial[static_cast<std::size_t>(part) * columns + c];
        store(c, sum);
      });
}

}  // namespace deltapipe
