// SPDX-License-Identifier: BSD-3-Clause
#include "models/deberta/deberta_model.hpp"

#include <fmt/format.h>

#include "core/base/printable.hpp"

namespace deltapipe {

namespace {

/// Warns of tensors that belong to a DeBERTa, but not to one of this configuration: a key is
/// probably wrong. transformers ignores a table of positions that is not used, as here.
void warn_of_unused(const DebertaModel& model, const SafetensorsReader& weights,
                    const std::string& directory, std::vector<std::string>& warnings) {
  const DebertaConfig& config = model.config();
  const bool projects = !config.shares_attention_key;
  const struct {
    bool is_used;
    const char *part, *key;
  } parts[] = {
      {config.convolution_width > 0, "encoder.conv.", "conv_kernel_size"},
      {config.normalizes_relative, "encoder.LayerNorm.", "norm_rel_ebd"},
      {config.segments > 0, "embeddings.token_type_embeddings.", "type_vocab_size"},
      {projects && config.content_to_position, ".self.pos_key_proj.",
       "share_att_key' or 'pos_att_type"},
      {projects && config.position_to_content, ".self.pos_query_proj.",
       "share_att_key' or 'pos_att_type"},
  };
  for (const auto& part : parts) {
    if (part.is_used) continue;
    for (const auto& [name, info] : weights.tensors()) {
      if (name.find(part.part) == std::string::npos) continue;
      warnings.push_back(
          fmt::format("{}: the weights have {}, which config.json does not use; check its '{}'",
                      printable(directory, 200), printable(name, 100), part.key));
      break;
    }
  }
}

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

std::string DebertaModel::description() const {
  return fmt::format("DeBERTa-v2 of {} blocks x {} channels, {} classes", config().layers,
                     config().channels, config().classes.size());
}

std::unique_ptr<Stage<float>> DebertaModel::make_stage(const StagePart& part) const {
  return std::make_unique<DebertaStage<float>>(config(), part, frozen());
}

std::unique_ptr<Model> load_deberta(const ConfigFile& file, const SafetensorsReader* weights,
                                    std::vector<std::string>& warnings) {
  auto model = load_classifier<DebertaModel>(file, weights, deberta_names(),
                                             {"pooler.dense", "classifier"}, warnings);
  if (weights != nullptr) warn_of_unused(*model, *weights, file.directory, warnings);
  return model;
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
