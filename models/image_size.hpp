// SPDX-License-Identifier: BSD-3-Clause
// The size of a model's images in config.json: `image_size` is a side, or [height, width].
#pragma once

#include <string>

#include "core/base/image_shape.hpp"
#include "models/config_keys.hpp"

namespace deltapipe {

/// Reads height and width; an absent key keeps them. Throws UserError with the remedy `supported`.
void read_image_size(const ConfigKeys& keys, const char* supported, ImageShape& image);
/// Returns height and width in the format of transformers.
Json image_size_of(const ImageShape& image);

}  // namespace deltapipe
