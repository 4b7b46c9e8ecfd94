// SPDX-License-Identifier: BSD-3-Clause
// Access to config.json of a Hugging Face directory, for any model.
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
/// Throws UserError when the file is missing or is not a JSON object.
ConfigFile read_config_file(const std::string& directory);
/// Sets the type in which weights are saved, if the file names a type: transformers would convert
/// the weights to it.
void set_saved_type(Json& json, Precision precision);
/// Returns DIRECTORY/generation_config.json, or null if the file is missing. Throws UserError when
/// it is not a JSON object.
Json read_generation_config(const std::string& directory);

}  // namespace deltapipe
