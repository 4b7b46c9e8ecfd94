// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <string>

#include "core/base/error.hpp"
#include "models/bert/bert_model.hpp"
#include "models/config_file.hpp"
#include "models/deberta/deberta_model.hpp"
#include "models/gpt2/gpt2_model.hpp"
#include "models/model.hpp"
#include "models/resnet/resnet_model.hpp"
#include "models/vit/vit_model.hpp"

namespace deltapipe {

namespace {

using Keys = std::string_view[];
constexpr Keys kTextKeys = {"n_layer", "n_head", "n_inner", "n_positions"};
constexpr Keys kPatchKeys = {"n_layer", "n_head", "n_inner", "patch_size"};
constexpr Keys kResidualKeys = {"depths", "stem"};

constexpr std::array kModelTypes = {
    ModelType{"gpt2", load_gpt2, create_gpt2, kTextKeys},
    ModelType{"bert", load_bert, create_bert, kTextKeys},
    ModelType{"deberta-v2", load_deberta, create_deberta, kTextKeys},
    ModelType{"vit", load_vit, create_vit, kPatchKeys},
    ModelType{"resnet", load_resnet, create_resnet, kResidualKeys},
};

std::string known_types() {
  std::string names;
  for (const ModelType& type : kModelTypes)
    names += (names.empty() ? "\"" : ", \"") + std::string(type.name) + "\"";
  return names;
}

/// Returns the type that a config.json names.
const ModelType& type_of(const ConfigFile& config) {
  const auto name = config.json.find("model_type");
  if (name != config.json.end())
    for (const ModelType& type : kModelTypes)
      if (*name == type.name) return type;
  throw UserError({.what = "'model_type' must be " + known_types(),
                   .file = config.path,
                   .value = name == config.json.end() ? "none" : shown(*name),
                   .remedy = "use a model of a type that deltapipe computes"});
}

}  // namespace

std::span<const ModelType> model_types() {
  return kModelTypes;
}

const ModelType& model_type(std::string_view name) {
  const auto type =
      std::ranges::find_if(kModelTypes, [&](const ModelType& known) { return name == known.name; });
  DELTAPIPE_ASSERT(type != kModelTypes.end(), std::string(name));
  return *type;
}

std::unique_ptr<Model> load_model(const std::string& directory, const SafetensorsReader* weights,
                                  std::vector<std::string>& warnings) {
  const ConfigFile config = read_config_file(directory);
  return type_of(config).load(config, weights, warnings);
}

}  // namespace deltapipe
