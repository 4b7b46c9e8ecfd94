// SPDX-License-Identifier: BSD-3-Clause
#include "models/file_model.hpp"

#include "core/files/replacement.hpp"
#include "models/config_file.hpp"

namespace deltapipe {

void FileModel::load(const SafetensorsReader& weights, ParameterArena<float>& parameters) const {
  load_weights<float>(weights, *names_, parameters, fresh());
}

void FileModel::check_weights(const std::string& directory, const SafetensorsReader& weights,
                              const std::vector<int>& partition) const {
  check_block_counts(weights, directory);
  for (int stage = 0; stage < static_cast<int>(partition.size()); ++stage)
    deltapipe::check_weights(weights, *names_, parameters(stage_part(partition, stage)), fresh());
}

std::vector<SavedRows> FileModel::saved_tensors(const ParameterInfo& parameter) const {
  std::vector<SavedRows> tensors = names_->tensors(parameter);
  for (SavedRows& tensor : tensors) tensor.name = names_->saved(tensor.name);
  return tensors;
}

void FileModel::save_configuration(const std::string& directory, Precision precision) const {
  if (file_.is_null()) return save_new(directory);
  Json json = file_;
  json["architectures"] = {names_->architecture};
  update(json);
  set_saved_type(json, precision);
  write_file_atomically(config_path(directory), json.dump(2) + "\n");
}

}  // namespace deltapipe
