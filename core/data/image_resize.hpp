// SPDX-License-Identifier: BSD-3-Clause
// Resizing of images with 8 bits a value, to the bit as Pillow's: bilinear, and over as many pixels
// as a new pixel covers where the image becomes smaller.
#pragma once

#include "core/data/settings.hpp"
#include "core/files/image_file.hpp"

namespace deltapipe {

/// A resized image, and the part of it that is kept.
struct ResizePlan {
  int height = 0, width = 0;  ///< of the whole resized image
  int top = 0, left = 0;      ///< of the part

  bool operator==(const ResizePlan&) const = default;
};

/// Returns how images of height x width become images of the size of `target`. ImageFit::crop
/// resizes until the image covers the target and keeps the centre, as torchvision's Resize(side)
/// and CenterCrop(side); ImageFit::stretch gives height and width a scale each.
ResizePlan plan_resize(int height, int width, const ImageShape& target, ImageFit fit);

/// Returns the part of the resized image. An image of the plan's size is only cut.
Image resized(const Image& image, const ResizePlan& plan, int height, int width);

}  // namespace deltapipe
