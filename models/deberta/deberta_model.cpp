// SPDX-License-Identifier: BSD-3-Clause
#include "models/deberta/deberta_model.hpp"

#include <algorithm>

#include "models/class_names.hpp"
#include "models/config_file.hpp"

namespace deltapipe {

namespace {

const std::set<std::string> kPooler = {"pooler.dense.weight", "pooler.dense.bias"};
const std::set<std::string> kClassifier = {"classifier.weight", "classifier.bias"};

}  // namespace

const WeightNames& deberta_names() {
  static const WeightNames names = {
      "DebertaV2ForSequenceClassification",
      "deberta.",
      {"pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias"},
      {"embeddings.", "encoder.layer.", "encoder.rel_embeddings.", "encoder.LayerNorm.",
       "encoder.conv."},
      "num_hidden_layers",
      "encoder.layer.",
      "output.dense.weight",
      {{".self.qkv.", {".self.query_proj.", ".self.key_proj.", ".self.value_proj."}},
       {".self.pos_qk.", {".self.pos_query_proj.", ".self.pos_key_proj."}}}};
  return names;
}

ModelShape DebertaModel::shape() const {
  return {.blocks = config().layers,
          .channels = config().channels,
          .positions = config().positions,
          .vocabulary = config().vocabulary,
          .segments = config().segments};
}

std::string DebertaModel::description() const {
  return "DeBERTa-v2 of " + std::to_string(config().layers) + " blocks x " +
         std::to_string(config().channels) + " channels, " +
         std::to_string(config().classes.size()) + " classes";
}

std::vector<Field> DebertaModel::fields() const {
  if (config().segments == 0) return {Field::tokens, Field::label};
  return {Field::tokens, Field::segments, Field::label};
}

std::unique_ptr<Stage<float>> DebertaModel::make_stage(const StagePart& part) const {
  return std::make_unique<DebertaStage<float>>(config(), part, frozen());
}

std::unique_ptr<Model> load_deberta(const ConfigFile& file, const SafetensorsReader* weights,
                                    std::vector<std::string>& warnings) {
  DebertaConfig config = DebertaConfig::read(file);
  std::set<std::string> fresh;
  add_fresh(file, weights, deberta_names(), kPooler, "pooler", fresh, warnings);
  if (!add_fresh(file, weights, deberta_names(), kClassifier, "classifier", fresh, warnings))
    config.classes = classes_of_classifier(file);
  if (weights != nullptr) warn_of_foreign(*weights, deberta_names(), file.directory, warnings);
  return std::make_unique<DebertaModel>(std::move(config), file.json, std::move(fresh));
}

std::unique_ptr<Model> create_deberta(const NewModel& shape) {
  auto config = new_encoder<DebertaConfig>(shape);
  config.positions = shape.positions;
  config.vocabulary = shape.vocabulary;
  // As DeBERTa-v3: half of the positions have a bucket each way.
  config.position_biased_input = false;
  config.position_buckets = shape.positions >= 8 ? shape.positions / 2 : -1;
  config.normalizes_relative = config.shares_attention_key = true;
  config.content_to_position = config.position_to_content = true;
  config.check("[model.new]");
  return std::make_unique<DebertaModel>(std::move(config));
}

}  // namespace deltapipe
