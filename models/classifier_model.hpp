// SPDX-License-Identifier: BSD-3-Clause
// Base class of the classifiers in Hugging Face directories.
#pragma once

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/blocks/block_stage.hpp"
#include "models/class_names.hpp"
#include "models/file_model.hpp"

namespace deltapipe {

/// Config has `classes`, facts(), save() and parts_of().
template <class Config>
class ClassifierModel : public FileModel {
 public:
  using Configuration = Config;

  /// `file` is the config.json of the configuration; null for a new model. Parameters in `fresh`
  /// are not in the files.
  ClassifierModel(const WeightNames& names, Config config, Json file, std::set<std::string> fresh)
      : FileModel(names, std::move(file)), config_(std::move(config)) {
    fresh_ = std::move(fresh);
    update_task();
  }

  std::vector<std::string> configuration() const override { return config_.facts(); }
  const Task& task() const override { return *task_; }
  std::vector<std::string> class_names() const override { return config_.classes; }
  void set_class_names(const std::vector<std::string>& names) override {
    config_.classes = names;
    update_task();
  }
  TextEnds text_ends() const override { return {}; }
  std::unique_ptr<Stage<float>> make_stage(const StagePart& part) const override {
    return std::make_unique<ModelStage<float, Config>>(config_, part, frozen());
  }

  const Config& config() const { return config_; }

 protected:
  Config& config() { return config_; }

 private:
  void save_new(const std::string& directory) const override { config_.save(directory); }
  void update(Json& json) const override {
    if (!fresh().empty()) put_class_names(json, config_.classes);
  }
  /// Without classes, which set_class_names() gives, the task is only asked for its kind.
  void update_task() {
    task_ = make_task("classification", std::max(2, static_cast<int>(config_.classes.size())));
  }

  Config config_;
  std::unique_ptr<Task> task_;
};

/// Returns the classes of a classifier, the last one of `layers`; none if the files lack it. Adds
/// layers that the files lack to `fresh`, with warnings. `weights` may be null: not available yet.
/// Throws UserError.
std::vector<std::string> read_classes(const ConfigFile& file, const SafetensorsReader* weights,
                                      const WeightNames& names,
                                      const std::vector<std::string>& layers,
                                      std::set<std::string>& fresh,
                                      std::vector<std::string>& warnings);

/// Loads a Classifier, a ClassifierModel, by its names of weights. `layers` are its last ones,
/// which the files may lack.
template <class Classifier>
std::unique_ptr<Classifier> load_classifier(const ConfigFile& file,
                                            const SafetensorsReader* weights,
                                            const WeightNames& names,
                                            const std::vector<std::string>& layers,
                                            std::vector<std::string>& warnings) {
  auto config = Classifier::Configuration::read(file);
  std::set<std::string> fresh;
  config.classes = read_classes(file, weights, names, layers, fresh, warnings);
  if (weights != nullptr) warn_of_foreign(*weights, names, file.directory, warnings);
  return std::make_unique<Classifier>(std::move(config), file.json, std::move(fresh));
}

}  // namespace deltapipe
