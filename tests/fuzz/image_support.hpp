// SPDX-License-Identifier: BSD-3-Clause
// Code shared by the fuzz targets of single images.
#pragma once

#include "core/data/image_resize.hpp"
#include "core/files/image_file.hpp"
#include "support.hpp"

namespace deltapipe::fuzz {

/// Reads an image and makes a small one of it.
inline void use_image(std::string_view bytes, bool grey) {
  const std::string file = write("image", bytes);
  takes([&] {
    const ImageHeader header = read_image_header(file);
    count("headers");
    const Image image = read_image(file, grey ? 1 : 3);
    expect(image.shape == ImageShape{header.height, header.width, grey ? 1 : 3});
    expect(image.pixels_HWC.size() == image.shape.values());
    const ImageFit fit = grey ? ImageFit::crop : ImageFit::stretch;
    const ImageShape target = {5, 3, image.shape.channels};
    const ResizePlan plan = plan_resize(header.height, header.width, target, fit);
    expect(resized(image, plan, 5, 3).pixels_HWC.size() == target.values());
    count("taken");
  });
}

}  // namespace deltapipe::fuzz
