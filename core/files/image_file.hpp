// SPDX-License-Identifier: BSD-3-Clause
// Untrusted PNG and JPEG files. Sizes are checked before memory is allocated for pixels, and a file
// that is cut or damaged is refused instead of being read in part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/image_shape.hpp"

namespace deltapipe {

enum class ImageEncoding { png, jpeg };

/// Properties that the beginning of a file gives.
struct ImageHeader {
  ImageEncoding encoding = ImageEncoding::png;
  int height = 0, width = 0;

  bool operator==(const ImageHeader&) const = default;
};

/// An image with 8 bits a value.
struct Image {
  ImageShape shape;
  std::vector<std::uint8_t> pixels_HWC;
};

namespace image_limit {
/// Pixels of an image; Pillow warns of a decompression bomb above this.
inline constexpr std::uint64_t pixels = 89'478'485;
inline constexpr std::uint64_t file = std::uint64_t{256} << 20;  ///< bytes
/// Passes of a progressive JPEG. Encoders write about ten; each costs time, but few bytes.
inline constexpr int scans = 100;
}  // namespace image_limit

/// Reads the header of a PNG or JPEG file; the first bytes decide which one it is. Throws UserError
/// for other files, for animations, and for sizes that the file cannot hold.
ImageHeader read_image_header(const std::string& path);

/// Reads an image with 1 channel (grey) or 3 (red, green, blue), with the pixels of Pillow's
/// convert(): transparency is dropped, colour profiles, gamma and the orientation of EXIF are
/// ignored, and of 16 bits the upper 8 are kept. Grey is 0.299 red + 0.587 green + 0.114 blue.
/// Throws UserError.
Image read_image(const std::string& path, int channels);

}  // namespace deltapipe
