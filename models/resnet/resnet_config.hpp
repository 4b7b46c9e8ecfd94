// SPDX-License-Identifier: BSD-3-Clause
// Configuration of a residual network from config.json in a Hugging Face directory.
#pragma once

#include <string>
#include <vector>

#include "core/base/image_shape.hpp"
#include "models/blocks/residual_shape.hpp"

namespace deltapipe {

struct ConfigFile;

/// The first convolution of a residual network.
struct StemShape {
  int kernel = 7;
  int stride = 2;
  bool pools = true;  ///< maxima of 3 x 3 pixels, stride 2
  bool operator==(const StemShape&) const = default;
};
/// Stems by the data sets that they were made for: transformers has the first one; the second one
/// keeps the size of small images.
inline constexpr StemShape kImagenetStem = {7, 2, true}, kCifarStem = {3, 1, false};

/// Shape and constants of a ResNetForImageClassification.
struct ResnetConfig {
  static constexpr std::size_t kMostGroups = 16;
  static constexpr int kMostChannels = 1 << 16;

  ImageShape image = {0, 0, 3};  ///< height 0: any size; see Model::set_image()
  StemShape stem;
  int stem_channels = 64;
  std::vector<int> channels = {256, 512, 1024, 2048};  ///< of each group of blocks
  std::vector<int> depths = {3, 4, 6, 3};              ///< blocks of each group
  bool bottleneck = true;
  bool halves_first = false;  ///< the first group has stride 2 as well
  bool early_stride = false;  ///< ResidualShape::early_stride
  BatchNormOptions norm = {};
  std::vector<std::string> classes;  ///< names; empty: not known yet

  /// Reads everything but `classes`. Throws UserError that names the key, its value and the
  /// supported values.
  static ResnetConfig read(const ConfigFile& file);
  /// Checks the ranges; `file` appears in messages.
  void check(const std::string& file) const;
  /// Returns "key = value" of everything that changes results.
  std::vector<std::string> facts() const;
  /// Writes DIRECTORY/config.json (atomically). transformers loads it as
  /// ResNetForImageClassification if the stem is kImagenetStem.
  void save(const std::string& directory) const;

  int blocks() const;
  /// Returns the group of a block, and its index within the group.
  struct Place {
    int group, index;
  };
  Place place(int block) const;

  // The following require the size of the images.
  ConvolutionShape stem_convolution() const {
    return {image, stem_channels, stem.kernel, stem.stride, stem.kernel / 2};
  }
  /// Returns the shape of what the first block takes.
  ImageShape stem_output() const {
    const ConvolutionShape convolution = stem_convolution();
    return stem.pools ? pooling_after(convolution).output() : convolution.output();
  }
  /// Returns the shapes of all blocks.
  std::vector<ResidualShape> block_shapes() const;
};

}  // namespace deltapipe
