// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <filesystem>

#include "core/base/error.hpp"
#include "core/files/input_file.hpp"
#include "core/files/json.inc"
#include "models/gpt2/gpt2_model.hpp"
#include "models/model.hpp"

namespace deltapipe {

namespace {

constexpr std::array kModelTypes = {
    ModelType{"gpt2", load_gpt2, create_gpt2},
};

std::string known_types() {
  std::string names;
  for (const ModelType& type : kModelTypes)
    names += (names.empty() ? "\"" : ", \"") + std::string(type.name) + "\"";
  return names;
}

/// The type that a config.json names.
const ModelType& type_of(const std::string& directory) {
  const std::string file = (std::filesystem::path(directory) / "config.json").string();
  const Json json = read_json_file(file, file_limit::model_config);
  if (!json.is_object())
    throw UserError({.what = "is not a JSON object",
                     .file = file,
                     .remedy = "copy or download the file again"});
  const auto name = json.find("model_type");
  if (name != json.end())
    for (const ModelType& type : kModelTypes)
      if (*name == type.name) return type;
  throw UserError({.what = "'model_type' must be " + known_types(),
                   .file = file,
                   .value = name == json.end() ? "none" : shown(*name),
                   .remedy = "use a model of a type that deltapipe computes"});
}

}  // namespace

std::span<const ModelType> model_types() {
  return kModelTypes;
}

std::unique_ptr<Model> load_model(const std::string& directory, const SafetensorsReader* weights,
                                  std::vector<std::string>& warnings) {
  return type_of(directory).load(directory, weights, warnings);
}

}  // namespace deltapipe
