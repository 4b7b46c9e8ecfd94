// SPDX-License-Identifier: BSD-3-Clause
#include "models/vit/vit_config.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "core/base/error.hpp"
#include "core/files/replacement.hpp"
#include "models/config_file.hpp"
#include "models/config_keys.hpp"
#include "models/image_size.hpp"

namespace deltapipe {

namespace {

constexpr const char* kSupportedVit =
    "deltapipe computes ViT as vit-base-patch16-224 and its fine-tuned children set it up";
constexpr int kMostSide = 1 << 14;
constexpr std::int64_t kMostPatchValues = 1 << 24;

}  // namespace

VitConfig VitConfig::read(const ConfigFile& file) {
  const ConfigKeys keys(file.json, file.path, kSupportedVit);
  keys.expect("qkv_bias", true);
  VitConfig config;
  config.read_encoder(keys);
  keys.integer("patch_size", config.patch);
  keys.integer("num_channels", config.image.channels);
  read_image_size(keys, kSupportedVit, config.image);
  config.check(file.path);
  return config;
}

void VitConfig::check(const std::string& file) const {
  check_encoder(file);
  require_value(patch >= 1 && patch <= kMostSide, file,
                fmt::format("'patch_size' must be from 1 to {}", kMostSide), std::to_string(patch));
  require_value(image.channels >= 1 && image.channels <= 1024, file,
                "'num_channels' must be from 1 to 1024", std::to_string(image.channels));
  require_value(std::int64_t{image.channels} * patch * patch <= kMostPatchValues, file,
                fmt::format("'num_channels' x 'patch_size'^2 must be at most {}", kMostPatchValues),
                fmt::format("{} and {}", image.channels, patch));
  require_value(image.height % patch == 0 && image.width % patch == 0, file,
                "'image_size' must be a multiple of 'patch_size'",
                fmt::format("{} x {} and {}", image.height, image.width, patch));
}

std::vector<std::string> VitConfig::facts() const {
  std::vector<std::string> facts = {fact("image", text_of(image)), fact("patch_size", patch)};
  add_facts(facts);
  return facts;
}

void VitConfig::save(const std::string& directory) const {
  const std::string file = config_path(directory);
  check(file);
  Json json;  // keys are written in alphabetical order
  put_encoder(json);
  json["architectures"] = {"ViTForImageClassification"};
  json["image_size"] = image_size_of(image);
  json["model_type"] = "vit";
  json["num_channels"] = image.channels;
  json["patch_size"] = patch;
  json["qkv_bias"] = true;
  write_file_atomically(file, json.dump(2) + "\n");
}

}  // namespace deltapipe
