// SPDX-License-Identifier: BSD-3-Clause
// GPT-2 as a model in the table of model_types().
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/files/json.hpp"
#include "models/file_model.hpp"
#include "models/gpt2/gpt2_config.hpp"
#include "models/gpt2/gpt2_stage.hpp"
#include "models/weights.hpp"

namespace deltapipe {

/// Returns the names of GPT2LMHeadModel or of GPT2ForSequenceClassification. The masks that old
/// versions of transformers saved count as the model's.
const WeightNames& gpt2_names();
const WeightNames& gpt2_classifier_names();

/// A language model or, with config.classes, a classifier, which set_class_names() makes of any
/// GPT-2.
class Gpt2Model final : public FileModel {
 public:
  /// `file` is the config.json of the configuration; null for a new model.
  explicit Gpt2Model(Gpt2Config config, Json file = {});

  ModelShape shape() const override;
  std::string description() const override;
  std::vector<std::string> configuration() const override { return config_.facts(); }
  const Task& task() const override { return task_ ? *task_ : language_model_task(); }
  std::vector<std::string> class_names() const override { return config_.classes; }
  void set_class_names(const std::vector<std::string>& names) override;
  DropoutProbabilities dropout() const override;
  void set_dropout(const DropoutProbabilities& dropout) override;
  ModelCost cost(int tokens) const override { return gpt2_cost(config_, tokens); }
  std::unique_ptr<Stage<float>> make_stage(const StagePart& part) const override;
  void initialise(std::uint64_t seed, ParameterArena<float>& parameters) const override {
    initialise_weights<float>(config_, seed, parameters);
  }
  TextEnds text_ends() const override;
  std::map<std::string, std::string> tied_names() const override;

  const Gpt2Config& config() const { return config_; }

 private:
  void save_new(const std::string& directory) const override { config_.save(directory); }
  void update(Json& json) const override;

  void classify();

  Gpt2Config config_;
  std::unique_ptr<Task> task_;  ///< null: language modelling
};

std::unique_ptr<Model> load_gpt2(const ConfigFile& config, const SafetensorsReader* weights,
                                 std::vector<std::string>& warnings);
std::unique_ptr<Model> create_gpt2(const NewModel& shape);

}  // namespace deltapipe
