// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/row_grid.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <vector>

using namespace deltapipe;

namespace {

constexpr int kPadding = 9;

/// Grids of even and odd sizes, with and without a row that has no place.
std::vector<RowGrid> grids() {
  std::vector<RowGrid> all;
  for (const int leading : {0, 1})
    for (const int stride : {1, 2, 4, 8})
      for (const auto& [height, width] : {std::pair{6, 6}, std::pair{7, 5}, std::pair{1, 4}})
        all.push_back({leading, height, width, stride});
  return all;
}

/// Calls f(grid, dy, dx) for crops in pixels.
template <class F>
void for_views(const F& f) {
  for (const RowGrid& grid : grids())
    for (int dy = -kPadding; dy <= kPadding; ++dy)
      for (int dx = -kPadding; dx <= kPadding; ++dx) f(grid, dy, dx);
}

}  // namespace

TEST_CASE("A crop moves rows by its pixels to the nearest place", "[row_grid]") {
  for_views([](const RowGrid& grid, int dy, int dx) {
    CAPTURE(grid.height, grid.width, grid.stride, dy, dx);
    const RowView view = row_view(grid, dy, dx);
    REQUIRE(2 * std::abs(view.dy * grid.stride - dy) <= grid.stride);
    REQUIRE(2 * std::abs(view.dx * grid.stride - dx) <= grid.stride);
    REQUIRE(row_view(grid, -dy, -dx) == RowView{-view.dy, -view.dx});
    for (int y = 0; y < grid.height; ++y)
      for (int x = 0; x < grid.width; ++x) {
        const int from_y = y + view.dy, from_x = x + view.dx;
        const bool inside =
            from_y >= 0 && from_y < grid.height && from_x >= 0 && from_x < grid.width;
        const int row = grid.leading + y * grid.width + x;
        const auto image_row = [&](int at_y, int at_x) {
          return grid.leading + at_y * grid.width + at_x;
        };
        REQUIRE(row_in_image(grid, view, row) == (inside ? image_row(from_y, from_x) : kNoRow));
        REQUIRE(row_in_image(grid, view, row, OutsideGrid::nearest) ==
                image_row(std::clamp(from_y, 0, grid.height - 1),
                          std::clamp(from_x, 0, grid.width - 1)));
      }
    for (int row = 0; row < grid.leading; ++row) {
      REQUIRE(row_in_image(grid, view, row) == row);
      REQUIRE(row_in_view(grid, view, row) == row);
    }
  });
}

TEST_CASE("A move and its inverse are no move inside of the frame", "[row_grid]") {
  for_views([](const RowGrid& grid, int dy, int dx) {
    CAPTURE(grid.height, grid.width, grid.stride, dy, dx);
    const RowView view = row_view(grid, dy, dx);
    int seen = 0, shown = 0;
    for (int row = 0; row < grid.rows(); ++row) {
      if (const int there = row_in_image(grid, view, row); there != kNoRow) {
        ++seen;
        REQUIRE(row_in_view(grid, view, there) == row);
        REQUIRE(row_in_view(grid, view, there, OutsideGrid::nearest) == row);
      }
      if (const int there = row_in_view(grid, view, row); there != kNoRow) {
        ++shown;
        REQUIRE(row_in_image(grid, view, there) == row);
      }
    }
    REQUIRE(seen == shown);
  });
}

TEST_CASE("Known moves of rows", "[row_grid]") {
  const RowGrid fine = {0, 3, 4, 1};
  const RowView view = row_view(fine, 1, 1);
  CHECK(row_in_image(fine, view, 0) == 5);
  CHECK(row_in_image(fine, view, 3) == kNoRow);
  CHECK(row_in_image(fine, view, 3, OutsideGrid::nearest) == 7);
  CHECK(row_in_image(fine, view, 11, OutsideGrid::nearest) == 11);
  CHECK(row_in_view(fine, view, 5) == 0);
  CHECK(row_in_view(fine, view, 0) == kNoRow);
  CHECK(row_in_view(fine, view, 0, OutsideGrid::nearest) == 0);

  CHECK(row_view({0, 4, 4, 2}, -3, 3) == RowView{-2, 2});
  CHECK(row_view({0, 4, 4, 4}, 1, -2) == RowView{0, -1});
  CHECK(row_view({1, 4, 4, 16}, 7, -7) == RowView{});
  const RowGrid tokens = {1, 2, 2, 4};
  CHECK(row_in_image(tokens, row_view(tokens, 0, 4), 0) == 0);
  CHECK(row_in_image(tokens, row_view(tokens, 0, 4), 1) == 2);
}

TEST_CASE("A view may be wholly outside of the image", "[row_grid]") {
  for (const RowGrid& grid : grids()) {
    const RowView view = row_view(grid, grid.stride * grid.height, 0);
    for (int row = grid.leading; row < grid.rows(); ++row) {
      REQUIRE(row_in_image(grid, view, row) == kNoRow);
      REQUIRE(row_in_view(grid, view, row) == kNoRow);
      REQUIRE(row_in_image(grid, view, row, OutsideGrid::nearest) >= grid.rows() - grid.width);
    }
  }
}

TEST_CASE("Coarser grids", "[row_grid]") {
  CHECK(RowGrid{1, 14, 13, 2}.coarser(7, 7, 2) == RowGrid{1, 7, 7, 4});
  CHECK_FALSE(RowGrid{}.coarser(7, 7, 2).has_places());
}
