// SPDX-License-Identifier: BSD-3-Clause
#include "models/config_file.hpp"

#include <filesystem>

#include "core/base/error.hpp"
#include "core/files/input_file.hpp"

namespace deltapipe {

std::string config_path(const std::string& directory) {
  return (std::filesystem::path(directory) / "config.json").string();
}

namespace {

Json read_object(const std::string& path) {
  Json json = read_json_file(path, file_limit::model_config);
  if (!json.is_object())
    throw UserError({.what = "is not a JSON object",
                     .file = path,
                     .remedy = "copy or download the file again"});
  return json;
}

}  // namespace

ConfigFile read_config_file(const std::string& directory) {
  const std::string path = config_path(directory);
  return {directory, path, read_object(path)};
}

Json read_generation_config(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory) / "generation_config.json";
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? read_object(path.string()) : Json();
}

void set_saved_type(Json& json, Precision precision) {
  const char* const name = precision == Precision::fp16   ? "float16"
                           : precision == Precision::bf16 ? "bfloat16"
                                                          : "float32";
  for (const char* key : {"dtype", "torch_dtype"})
    if (json.contains(key)) json[key] = name;
}

}  // namespace deltapipe
