// SPDX-License-Identifier: BSD-3-Clause
// config.json of a Hugging Face directory, before anything knows whose it is.
#pragma once

#include <string>

#include "core/base/numeric/precision.hpp"
#include "core/files/json.hpp"

namespace deltapipe {

struct ConfigFile {
  std::string directory;
  std::string path;  ///< DIRECTORY/config.json
  Json json;         ///< an object
};

std::string config_path(const std::string& directory);
/// Throws UserError when there is no such file or it is not a JSON object.
ConfigFile read_config_file(const std::string& directory);
/// Puts the type that weights are saved in where the file names one: transformers would convert
/// them to it.
void set_saved_type(Json& json, Precision precision);
/// DIRECTORY/generation_config.json; null if the file does not exist. Throws UserError when it is
/// not a JSON object.
Json read_generation_config(const std::string& directory);

}  // namespace deltapipe
