// SPDX-License-Identifier: BSD-3-Clause
// The shape of an image.
#pragma once

#include <cstddef>
#include <string>

namespace deltapipe {

struct ImageShape {
  int height = 0, width = 0, channels = 0;

  std::size_t values() const {
    return static_cast<std::size_t>(height) * static_cast<std::size_t>(width) *
           static_cast<std::size_t>(channels);
  }
  bool operator==(const ImageShape&) const = default;
};
/// Returns a text such as "32 x 32 x 3".
inline std::string text_of(const ImageShape& shape) {
  return std::to_string(shape.height) + " x " + std::to_string(shape.width) + " x " +
         std::to_string(shape.channels);
}

}  // namespace deltapipe
