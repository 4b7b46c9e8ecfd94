// SPDX-License-Identifier: BSD-3-Clause
#include "models/image_size.hpp"

namespace deltapipe {

void read_image_size(const ConfigKeys& keys, const char* supported, ImageShape& image) {
  const Json* const size = keys.find("image_size");
  if (size == nullptr) return;
  const auto is_side = [](const Json& side) {
    constexpr int kMostSide = 1 << 14;
    return side.is_number_integer() && side >= 1 && side <= kMostSide;
  };
  if (is_side(*size))
    image.height = image.width = size->get<int>();
  else if (size->is_array() && size->size() == 2 && is_side((*size)[0]) && is_side((*size)[1]))
    image.height = (*size)[0].get<int>(), image.width = (*size)[1].get<int>();
  else
    keys.refuse("'image_size' must be the side of an image, or its height and width", shown(*size),
                supported);
}

Json image_size_of(const ImageShape& image) {
  return image.height == image.width ? Json(image.height) : Json({image.height, image.width});
}

}  // namespace deltapipe
