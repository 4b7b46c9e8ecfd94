// SPDX-License-Identifier: BSD-3-Clause
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

constexpr std::array kModelTypes = {
    ModelType{"gpt2", load_gpt2, create_gpt2},
    ModelType{"bert", load_bert, create_bert},
    ModelType{"deberta-v2", load_deberta, create_deberta},
    ModelType{"vit", load_vit, create_vit},
    ModelType{"resnet", load_resnet, create_resnet},
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

std::unique_ptr<Model> load_model(const std::string& directory, const SafetensorsReader* weights,
                                  std::vector<std::string>& warnings) {
  const ConfigFile config = read_config_file(directory);
  return type_of(config).load(config, weights, warnings);
}

}  // namespace deltapipe
