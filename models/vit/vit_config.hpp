// SPDX-License-Identifier: BSD-3-Clause
// Configuration of a vision transformer from config.json in a Hugging Face directory.
#pragma once

#include <string>
#include <vector>

#include "core/base/image_shape.hpp"
#include "core/kernels/layers/activations.hpp"

namespace deltapipe {

struct ConfigFile;

/// Shape and constants of a ViTForImageClassification.
struct VitConfig {
  int layers = 12;
  int heads = 12;
  int channels = 768;  ///< C, divisible by heads
  int hidden = 3072;   ///< width of the MLP
  ImageShape image = {224, 224, 3};
  int patch = 16;  ///< side of a patch, divides height and width
  Activation activation = Activation::gelu_erf;
  double layer_norm_epsilon = 1e-12;
  double initializer_range = 0.02;
  double hidden_dropout = 0;     ///< before residual sums
  double embedding_dropout = 0;  ///< a config.json has one value for both
  double attention_dropout = 0;
  std::vector<std::string> classes;  ///< names; empty: not known yet

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
