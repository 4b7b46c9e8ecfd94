// SPDX-License-Identifier: BSD-3-Clause
// BERT as a model in the table of model_types().
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/bert/bert_config.hpp"
#include "models/bert/bert_stage.hpp"
#include "models/encoder_model.hpp"

namespace deltapipe {

/// Returns the names of BertForSequenceClassification.
const WeightNames& bert_names();

class BertModel final : public TextEncoderModel<BertConfig> {
 public:
  explicit BertModel(BertConfig config, Json file = {}, std::set<std::string> fresh = {})
      : TextEncoderModel(bert_names(), std::move(config), std::move(file), std::move(fresh)) {}

  std::string description() const override;
  ModelCost cost(int tokens) const override { return bert_cost(config(), tokens); }
};

std::unique_ptr<Model> load_bert(const ConfigFile& config, const SafetensorsReader* weights,
                                 std::vector<std::string>& warnings);
std::unique_ptr<Model> create_bert(const NewModel& shape);

}  // namespace deltapipe
