// SPDX-License-Identifier: BSD-3-Clause
// A model in a Hugging Face directory: what all such models do with its files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/files/json.hpp"
#include "models/model.hpp"
#include "models/weights.hpp"

namespace deltapipe {

class FileModel : public Model {
 public:
  /// `names` outlives the model. `file` is the config.json of the configuration; null for a new
  /// model.
  FileModel(const WeightNames& names, Json file) : names_(&names), file_(std::move(file)) {}

  void load(const SafetensorsReader& weights, ParameterArena<float>& parameters) const override;
  void check_weights(const std::string& directory, const SafetensorsReader& weights,
                     const std::vector<int>& partition) const override;
  void save_configuration(const std::string& directory, Precision precision) const override;
  std::string saved_name(const std::string& parameter) const override {
    return names_->saved(parameter);
  }
  std::vector<SavedRows> saved_tensors(const ParameterInfo& parameter) const override;

 protected:
  /// Changes the names, of a model that is used for another task than its files.
  void rename(const WeightNames& names) { names_ = &names; }

 private:
  /// Throws UserError if the files have more blocks than the configuration.
  virtual void check_block_counts(const SafetensorsReader& weights,
                                  const std::string& directory) const {
    check_block_count(weights, *names_, directory, shape().blocks);
  }
  /// Writes DIRECTORY/config.json of a new model.
  virtual void save_new(const std::string& directory) const = 0;
  /// Changes in config.json what no longer holds.
  virtual void update(Json& json) const = 0;

  const WeightNames* names_;
  Json file_;
};

}  // namespace deltapipe
