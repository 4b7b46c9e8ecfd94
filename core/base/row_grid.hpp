// SPDX-License-Identifier: BSD-3-Clause
// Places of a sample's rows in its image, and how crops move them.
#pragma once

#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe {

/// Rows of a sample that lie over its image: after `leading` rows, such as a class token, a row for
/// each place (y, x) of height x width, `stride` pixels apart.
struct RowGrid {
  int leading = 0;
  int height = 0, width = 0;  ///< 0: rows have no places
  int stride = 1;

  bool has_places() const { return height > 0; }
  KOKKOS_INLINE_FUNCTION int rows() const { return leading + height * width; }
  /// Returns the grid of every `factor`th place in both directions, from the first one on.
  RowGrid coarser(int height_of_result, int width_of_result, int factor) const {
    if (!has_places()) return {};
    return {leading, height_of_result, width_of_result, stride * factor};
  }
  bool operator==(const RowGrid&) const = default;
};

/// The part of an image that a visit sees, in places of a grid: place (y, x) of the view is place
/// (y + dy, x + dx) of the image.
struct RowView {
  int dy = 0, dx = 0;

  bool operator==(const RowView&) const = default;
};

/// Returns the view in places of `grid` for a crop by dy and dx pixels, to the nearest place.
RowView row_view(const RowGrid& grid, int dy, int dx);

/// Stand-in for a place that is outside of the grid: no row, or the row of the nearest place.
enum class OutsideGrid { no_row, nearest };
inline constexpr int kNoRow = -1;

KOKKOS_INLINE_FUNCTION int row_at(const RowGrid& grid, int y, int x, OutsideGrid outside) {
  const int near_y = y < 0 ? 0 : y >= grid.height ? grid.height - 1 : y;
  const int near_x = x < 0 ? 0 : x >= grid.width ? grid.width - 1 : x;
  if (outside == OutsideGrid::no_row && (near_y != y || near_x != x)) return kNoRow;
  return grid.leading + near_y * grid.width + near_x;
}

/// Returns the image's row at row `row` of the view. Leading rows stay in their places.
KOKKOS_INLINE_FUNCTION int row_in_image(const RowGrid& grid, const RowView& view, int row,
                                        OutsideGrid outside = OutsideGrid::no_row) {
  if (row < grid.leading) return row;
  const int y = (row - grid.leading) / grid.width, x = (row - grid.leading) % grid.width;
  return row_at(grid, y + view.dy, x + view.dx, outside);
}

/// Returns the view's row at row `row` of the image: the inverse of row_in_image().
KOKKOS_INLINE_FUNCTION int row_in_view(const RowGrid& grid, const RowView& view, int row,
                                       OutsideGrid outside = OutsideGrid::no_row) {
  if (row < grid.leading) return row;
  const int y = (row - grid.leading) / grid.width, x = (row - grid.leading) % grid.width;
  return row_at(grid, y - view.dy, x - view.dx, outside);
}

}  // namespace deltapipe
