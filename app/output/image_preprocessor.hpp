// SPDX-License-Identifier: BSD-3-Clause
// preprocessor_config.json, by which transformers prepares images as the run did.
#pragma once

#include <string>
#include <vector>

#include "app/deck/settings.hpp"
#include "app/output/kept_files.hpp"
#include "core/base/image_shape.hpp"

namespace deltapipe {

inline constexpr const char* kImagePreprocessorFile = "preprocessor_config.json";

/// Puts the file for images of this shape among `files`, in place of that of model.path. For decks
/// of images.
void add_image_preprocessor(const ImageSettings& settings, const ImageShape& shape,
                            std::vector<KeptFile>& files);

/// Warns if the file in model.path names another mean or deviation than the deck, which a model
/// that was trained with them does not know, or if it cannot be read.
std::vector<std::string> warnings_of_preprocessor(const Settings& settings);

}  // namespace deltapipe
