// SPDX-License-Identifier: BSD-3-Clause
#include "models/resnet/resnet_config.hpp"

#include <fmt/format.h>

#include <numeric>

#include "core/base/error.hpp"
#include "core/files/replacement.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"
#include "models/config_keys.hpp"
#include "models/image_size.hpp"

namespace deltapipe {

namespace {

constexpr const char* kSupportedResNet =
    "deltapipe computes ResNet as microsoft/resnet-18 to resnet-152 set it up";
constexpr int kMostBlocks = 1 << 12;

bool is_count(const Json& value, int most) {
  return value.is_number_integer() && value >= 1 && value <= most;
}

void read_counts(const ConfigKeys& keys, const char* key, int most, std::vector<int>& target) {
  const Json* const list = keys.find(key);
  if (list == nullptr) return;
  bool fits = list->is_array() && !list->empty() && list->size() <= ResnetConfig::kMostGroups;
  for (std::size_t i = 0; fits && i < list->size(); ++i) fits = is_count((*list)[i], most);
  if (!fits)
    keys.refuse(fmt::format("'{}' must be a list of numbers from 1 to {}", key, most), shown(*list),
                kSupportedResNet);
  target = list->get<std::vector<int>>();
}

std::string text_of(const std::vector<int>& values) {
  std::string text;
  for (const int value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return "[" + text + "]";
}

}  // namespace

ResnetConfig ResnetConfig::read(const ConfigFile& file) {
  const ConfigKeys keys(file.json, file.path, kSupportedResNet);
  check_classifier(keys);
  keys.expect("hidden_act", "relu");
  ResnetConfig config;
  keys.integer("num_channels", config.image.channels);
  read_image_size(keys, kSupportedResNet, config.image);  // transformers does not have it
  keys.integer("embedding_size", config.stem_channels);
  keys.integer("stem_kernel_size", config.stem.kernel);
  keys.integer("stem_stride", config.stem.stride);
  keys.boolean("stem_pooling", config.stem.pools);
  read_counts(keys, "hidden_sizes", kMostChannels, config.channels);
  read_counts(keys, "depths", kMostBlocks, config.depths);
  if (const Json* const type = keys.find("layer_type")) {
    if (*type != "basic" && *type != "bottleneck")
      keys.refuse("'layer_type' must be \"basic\" or \"bottleneck\"", shown(*type),
                  kSupportedResNet);
    config.bottleneck = *type == "bottleneck";
  }
  keys.boolean("downsample_in_first_stage", config.halves_first);
  keys.boolean("downsample_in_bottleneck", config.early_stride);
  config.check(file.path);
  return config;
}

void ResnetConfig::check(const std::string& file) const {
  const auto require = [&](bool holds, const std::string& rule, const std::string& value) {
    require_value(holds, file, rule, value);
  };
  const auto in_range = [&](const char* key, int value, int most) {
    require(value >= 1 && value <= most, fmt::format("'{}' must be from 1 to {}", key, most),
            std::to_string(value));
  };
  in_range("num_channels", image.channels, 1024);
  in_range("embedding_size", stem_channels, kMostChannels);
  in_range("stem_kernel_size", stem.kernel, 15);
  require(stem.kernel % 2 == 1, "'stem_kernel_size' must be odd", std::to_string(stem.kernel));
  in_range("stem_stride", stem.stride, 16);
  require(channels.size() == depths.size(),
          "'hidden_sizes' and 'depths' must have the same number of entries",
          fmt::format("{} and {}", channels.size(), depths.size()));
  require(depths.size() <= kMostGroups,
          fmt::format("'depths' must have at most {} entries", kMostGroups),
          std::to_string(depths.size()));
  for (const int count : channels) in_range("hidden_sizes", count, kMostChannels);
  require(blocks() <= kMostBlocks, fmt::format("'depths' must add up to at most {}", kMostBlocks),
          std::to_string(blocks()));
  for (const int count : channels)
    require(!bottleneck || count % 4 == 0,
            "'hidden_sizes' must be multiples of 4 with layer_type \"bottleneck\"",
            std::to_string(count));
}

std::vector<std::string> ResnetConfig::facts() const {
  std::vector<std::string> facts = {fact("image", deltapipe::text_of(image)),
                                    fact("embedding_size", stem_channels),
                                    fact("stem_kernel_size", stem.kernel),
                                    fact("stem_stride", stem.stride),
                                    fact("stem_pooling", stem.pools),
                                    fact("hidden_sizes", text_of(channels)),
                                    fact("depths", text_of(depths)),
                                    fact("layer_type", bottleneck ? "bottleneck" : "basic"),
                                    fact("downsample_in_first_stage", halves_first),
                                    fact("downsample_in_bottleneck", early_stride)};
  for (const std::string& name : classes) facts.push_back(fact("id2label", name));
  return facts;
}

void ResnetConfig::save(const std::string& directory) const {
  const std::string file = config_path(directory);
  check(file);
  Json json;  // keys are written in alphabetical order
  json["architectures"] = {"ResNetForImageClassification"};
  json["depths"] = depths;
  json["downsample_in_bottleneck"] = early_stride;
  json["downsample_in_first_stage"] = halves_first;
  json["embedding_size"] = stem_channels;
  json["hidden_act"] = "relu";
  json["hidden_sizes"] = channels;
  json["image_size"] = image_size_of(image);
  json["layer_type"] = bottleneck ? "bottleneck" : "basic";
  json["model_type"] = "resnet";
  json["num_channels"] = image.channels;
  if (stem != kImagenetStem) {
    json["stem_kernel_size"] = stem.kernel;
    json["stem_pooling"] = stem.pools;
    json["stem_stride"] = stem.stride;
  }
  put_class_names(json, classes);
  write_file_atomically(file, json.dump(2) + "\n");
}

int ResnetConfig::blocks() const {
  return std::accumulate(depths.begin(), depths.end(), 0);
}

ResnetConfig::Place ResnetConfig::place(int block) const {
  int group = 0;
  while (block >= depths[group]) block -= depths[group++];
  return {group, block};
}

std::vector<ResidualShape> ResnetConfig::block_shapes() const {
  std::vector<ResidualShape> shapes;
  for (std::size_t group = 0; group < depths.size(); ++group)
    for (int i = 0; i < depths[group]; ++i)
      shapes.push_back({.input = shapes.empty() ? stem_output() : shapes.back().output(),
                        .outputs = channels[group],
                        .stride = i == 0 && (group > 0 || halves_first) ? 2 : 1,
                        .bottleneck = bottleneck,
                        .early_stride = early_stride});
  return shapes;
}

}  // namespace deltapipe
