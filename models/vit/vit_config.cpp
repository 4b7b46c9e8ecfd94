// SPDX-License-Identifier: BSD-3-Clause
#include "models/vit/vit_config.hpp"

#include <array>

#include "core/base/error.hpp"
#include "core/files/replacement.hpp"
#include "models/activation_names.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"
#include "models/config_keys.hpp"

namespace deltapipe {

namespace {

constexpr const char* kSupported =
    "deltapipe computes ViT as vit-base-patch16-224 and its fine-tuned children set it up";
constexpr int kMostSide = 1 << 14;

constexpr const char* kProbability = "a probability from 0 to below 1";
bool is_probability(double p) {
  return p >= 0 && p < 1;
}

constexpr std::array<IntegerField<VitConfig>, 5> kIntegers = {{
    {"num_hidden_layers", nullptr, &VitConfig::layers, 1 << 14},
    {"num_attention_heads", nullptr, &VitConfig::heads, 1 << 14},
    {"hidden_size", nullptr, &VitConfig::channels, 1 << 18},
    {"intermediate_size", nullptr, &VitConfig::hidden, 1 << 20},
    {"patch_size", nullptr, &VitConfig::patch, kMostSide},
}};
constexpr std::array<RealField<VitConfig>, 4> kReals = {{
    {"layer_norm_eps", &VitConfig::layer_norm_epsilon, "above 0 and below 1",
     [](double x) { return x > 0 && x < 1; }},
    {"initializer_range", &VitConfig::initializer_range, "from 0 to below 100",
     [](double x) { return x >= 0 && x < 100; }},
    {"hidden_dropout_prob", &VitConfig::hidden_dropout, kProbability, is_probability},
    {"attention_probs_dropout_prob", &VitConfig::attention_dropout, kProbability, is_probability},
}};

/// image_size is a number or [height, width].
void read_image_size(const ConfigKeys& keys, ImageShape& image) {
  const Json* const size = keys.find("image_size");
  if (size == nullptr) return;
  const auto is_side = [](const Json& side) {
    return side.is_number_integer() && side >= 1 && side <= kMostSide;
  };
  if (is_side(*size))
    image.height = image.width = size->get<int>();
  else if (size->is_array() && size->size() == 2 && is_side((*size)[0]) && is_side((*size)[1]))
    image.height = (*size)[0].get<int>(), image.width = (*size)[1].get<int>();
  else
    keys.refuse("'image_size' must be the side of an image, or its height and width", shown(*size),
                kSupported);
}

}  // namespace

VitConfig VitConfig::read(const ConfigFile& file) {
  const ConfigKeys keys(file.json, file.path, kSupported);
  keys.expect("qkv_bias", true);
  if (const Json* quantised = keys.find("quantization_config"))
    keys.refuse("'quantization_config' says that the weights are quantised", shown(*quantised),
                "use the weights from before the quantisation");
  VitConfig config;
  for (const auto& field : kIntegers) read_field(keys, field, config);
  for (const auto& field : kReals) read_field(keys, field, config);
  keys.integer("num_channels", config.image.channels);
  read_image_size(keys, config.image);
  config.embedding_dropout = config.hidden_dropout;
  read_activation(keys, "hidden_act", config.activation);
  config.check(file.path);
  return config;
}

void VitConfig::check(const std::string& file) const {
  for (const auto& field : kIntegers) check_field(file, field, *this);
  require_value(channels % heads == 0, file,
                "'hidden_size' must be a multiple of 'num_attention_heads'",
                std::to_string(channels) + " and " + std::to_string(heads));
  require_value(image.channels >= 1 && image.channels <= 1024, file,
                "'num_channels' must be from 1 to 1024", std::to_string(image.channels));
  require_value(image.height % patch == 0 && image.width % patch == 0, file,
                "'image_size' must be a multiple of 'patch_size'",
                std::to_string(image.height) + " x " + std::to_string(image.width) + " and " +
                    std::to_string(patch));
  for (const auto& field : kReals) check_field(file, field, *this);
}

std::vector<std::string> VitConfig::facts() const {
  std::vector<std::string> facts;
  for (const auto& field : kIntegers) facts.push_back(fact(field.key, this->*field.value));
  for (const auto& field : kReals) facts.push_back(fact(field.key, this->*field.value));
  facts.push_back(fact("image", text_of(image)));
  facts.push_back(fact("embedding dropout", embedding_dropout));
  facts.push_back(fact("hidden_act", name_of(activation)));
  for (const std::string& name : classes) facts.push_back(fact("id2label", name));
  return facts;
}

void VitConfig::save(const std::string& directory) const {
  const std::string file = config_path(directory);
  check(file);
  Json json;  // keys are written in alphabetical order
  for (const auto& field : kIntegers) json[field.key] = this->*field.value;
  for (const auto& field : kReals) json[field.key] = this->*field.value;
  json["architectures"] = {"ViTForImageClassification"};
  json["hidden_act"] = name_of(activation);
  json["image_size"] =
      image.height == image.width ? Json(image.height) : Json({image.height, image.width});
  json["model_type"] = "vit";
  json["num_channels"] = image.channels;
  json["qkv_bias"] = true;
  put_class_names(json, classes);
  write_file_atomically(file, json.dump(2) + "\n");
}

}  // namespace deltapipe
