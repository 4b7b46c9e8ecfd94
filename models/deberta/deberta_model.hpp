// SPDX-License-Identifier: BSD-3-Clause
// DeBERTa-v2 and -v3 as a model in the table of model_types().
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/deberta/deberta_config.hpp"
#include "models/deberta/deberta_stage.hpp"
#include "models/encoder_model.hpp"

namespace deltapipe {

/// Returns the names of DebertaV2ForSequenceClassification.
const WeightNames& deberta_names();

class DebertaModel final : public TextEncoderModel<DebertaConfig> {
 public:
  explicit DebertaModel(DebertaConfig config, Json file = {}, std::set<std::string> fresh = {})
      : TextEncoderModel(deberta_names(), std::move(config), std::move(file), std::move(fresh)) {}

  std::string description() const override;
  void train_relative_embeddings() override { config().trains_relative = true; }
  ModelCost cost(int tokens) const override { return deberta_cost(config(), tokens); }
  std::unique_ptr<Stage<float>> make_stage(const StagePart& part) const override;
};

std::unique_ptr<Model> load_deberta(const ConfigFile& config, const SafetensorsReader* weights,
                                    std::vector<std::string>& warnings);
std::unique_ptr<Model> create_deberta(const NewModel& shape);

}  // namespace deltapipe
