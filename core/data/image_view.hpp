// SPDX-License-Identifier: BSD-3-Clause
// Augmentation of images: crops with padding, and flips.
#pragma once

#include <cstdint>

#include "core/base/row_grid.hpp"

namespace deltapipe {

/// The part of an image that a visit sees: pixel (y, x) is pixel (y + dy, x + dx) of the image or,
/// if `flipped`, (y + dy, W - 1 - x + dx). Pixels outside of the image are 0 before normalisation.
struct ImageView {
  int dy = 0, dx = 0;
  bool flipped = false;

  bool operator==(const ImageView&) const = default;
};

/// Draws the view of a visit: offsets from -padding to padding, each as likely as the others, and,
/// with `flips`, a flip half of the time. A function of its arguments only.
ImageView draw_view(std::uint64_t seed, std::uint64_t epoch, std::uint64_t id, int padding,
                    bool flips);

/// Returns the part of the image in places of `grid`. For a flipped view these are places of the
/// flipped image, where the crop points the other way.
inline RowView row_view(const RowGrid& grid, const ImageView& view) {
  return row_view(grid, view.dy, view.flipped ? -view.dx : view.dx);
}

}  // namespace deltapipe
