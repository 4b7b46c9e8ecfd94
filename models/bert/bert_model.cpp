// SPDX-License-Identifier: BSD-3-Clause
#include "models/bert/bert_model.hpp"

#include <fmt/format.h>

namespace deltapipe {

const WeightNames& bert_names() {
  static const WeightNames names = {
      "BertForSequenceClassification",
      "bert.",
      {"classifier.weight", "classifier.bias"},
      // Old versions of transformers saved the positions' numbers.
      {"embeddings.", "encoder.layer.", "pooler.", "classifier."},
      "num_hidden_layers",
      "encoder.layer.",
      "output.dense.weight",
      {{".self.qkv.", {".self.query.", ".self.key.", ".self.value."}}}};
  return names;
}

std::string BertModel::description() const {
  return fmt::format("BERT of {} blocks x {} channels, {} classes", config().layers,
                     config().channels, config().classes.size());
}

std::unique_ptr<Model> load_bert(const ConfigFile& file, const SafetensorsReader* weights,
                                 std::vector<std::string>& warnings) {
  return load_classifier<BertModel>(file, weights, bert_names(), {"pooler.dense", "classifier"},
                                    warnings);
}

std::unique_ptr<Model> create_bert(const NewModel& shape) {
  auto config = new_encoder<BertConfig>(shape);
  config.positions = shape.positions;
  config.vocabulary = shape.vocabulary;
  config.check("[model.new]");
  return std::make_unique<BertModel>(std::move(config));
}

}  // namespace deltapipe
