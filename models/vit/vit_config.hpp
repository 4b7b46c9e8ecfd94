// SPDX-License-Identifier: BSD-3-Clause
// Configuration of a vision transformer from config.json in a Hugging Face directory.
#pragma once

#include <string>
#include <vector>

#include "core/base/image_shape.hpp"
#include "models/encoder_config.hpp"

namespace deltapipe {

struct ConfigFile;

/// Shape and constants of a ViTForImageClassification.
struct VitConfig : EncoderConfig {
  ImageShape image = {224, 224, 3};
  int patch = 16;  ///< side of a patch, divides height and width

  /// Returns T: the class token and the patches.
  int tokens() const { return 1 + image.height / patch * (image.width / patch); }
  /// Reads everything but `classes`. Throws UserError that names the key, its value and the
  /// supported values.
  static VitConfig read(const ConfigFile& file);
  /// Checks the ranges; `file` appears in messages.
  void check(const std::string& file) const;
  /// Returns "key = value" of everything that changes results.
  std::vector<std::string> facts() const;
  /// Writes DIRECTORY/config.json (atomically), which transformers loads as
  /// ViTForImageClassification.
  void save(const std::string& directory) const;
};

}  // namespace deltapipe
