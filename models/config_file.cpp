// SPDX-License-Identifier: BSD-3-Clause
#include "models/config_file.hpp"

#include <filesystem>

#include "core/base/error.hpp"
#include "core/files/input_file.hpp"

namespace deltapipe {

std::string config_path(const std::string& directory) {
  return (std::filesystem::path(directory) / "config.json").string();
}

ConfigFile read_config_file(const std::string& directory) {
  ConfigFile config{directory, config_path(directory), {}};
  config.json = read_json_file(config.path, file_limit::model_config);
  if (!config.json.is_object())
    throw UserError({.what = "is not a JSON object",
                     .file = config.path,
                     .remedy = "copy or download the file again"});
  return config;
}

}  // namespace deltapipe
