// SPDX-License-Identifier: BSD-3-Clause
// BERT as a model in the table of model_types().
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/bert/bert_config.hpp"
#include "models/bert/bert_stage.hpp"
#include "models/file_model.hpp"

namespace deltapipe {

/// Returns the names of BertForSequenceClassification.
const WeightNames& bert_names();

class BertModel final : public FileModel {
 public:
  /// `file` is the config.json of the configuration; null for a new model. Parameters in `fresh`
  /// are not in the files.
  explicit BertModel(BertConfig config, Json file = {}, std::set<std::string> fresh = {});

  ModelShape shape() const override;
  std::string description() const override;
  std::vector<std::string> configuration() const override { return config_.facts(); }
  const Task& task() const override;
  std::vector<std::string> class_names() const override { return config_.classes; }
  void set_class_names(const std::vector<std::string>& names) override;
  std::vector<Field> fields() const override {
    return {Field::tokens, Field::segments, Field::label};
  }
  DropoutProbabilities dropout() const override;
  void set_dropout(const DropoutProbabilities& dropout) override;
  ModelCost cost(int tokens) const override { return bert_cost(config_, tokens); }
  std::unique_ptr<Stage<float>> make_stage(const StagePart& part) const override;
  void initialise(std::uint64_t seed, ParameterArena<float>& parameters) const override;
  TextEnds text_ends() const override { return {}; }

 private:
  void save_new(const std::string& directory) const override { config_.save(directory); }
  void update(Json& json) const override;
  void make_task();

  BertConfig config_;
  std::unique_ptr<Task> task_;
};

std::unique_ptr<Model> load_bert(const ConfigFile& config, const SafetensorsReader* weights,
                                 std::vector<std::string>& warnings);
std::unique_ptr<Model> create_bert(const NewModel& shape);

}  // namespace deltapipe
