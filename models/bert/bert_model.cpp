// SPDX-License-Identifier: BSD-3-Clause
#include "models/bert/bert_model.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "models/class_names.hpp"
#include "models/config_keys.hpp"

namespace deltapipe {

namespace {

const std::set<std::string> kPooler = {"pooler.dense.weight", "pooler.dense.bias"};
const std::set<std::string> kClassifier = {"classifier.weight", "classifier.bias"};

/// Returns true if the files hold one of the parameters.
bool holds(const SafetensorsReader& weights, const std::set<std::string>& parameters) {
  for (const std::string& name : parameters)
    if (weights.contains(name) || weights.contains(bert_names().saved(name))) return true;
  return false;
}

}  // namespace

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

BertModel::BertModel(BertConfig config, Json file, std::set<std::string> fresh)
    : FileModel(bert_names(), std::move(file)), config_(std::move(config)) {
  fresh_ = std::move(fresh);
  make_task();
}

void BertModel::make_task() {
  // Without classes, which set_class_names() gives, the task is only asked for its kind.
  task_ =
      deltapipe::make_task("classification", std::max(2, static_cast<int>(config_.classes.size())));
}

const Task& BertModel::task() const {
  return *task_;
}

void BertModel::set_class_names(const std::vector<std::string>& names) {
  config_.classes = names;
  make_task();
}

ModelShape BertModel::shape() const {
  return {.blocks = config_.layers,
          .channels = config_.channels,
          .positions = config_.positions,
          .vocabulary = config_.vocabulary,
          .segments = config_.segments};
}

std::string BertModel::description() const {
  return "BERT of " + std::to_string(config_.layers) + " blocks x " +
         std::to_string(config_.channels) + " channels, " + std::to_string(config_.classes.size()) +
         " classes";
}

DropoutProbabilities BertModel::dropout() const {
  return {config_.embedding_dropout, config_.attention_dropout, config_.hidden_dropout};
}

void BertModel::set_dropout(const DropoutProbabilities& dropout) {
  if (dropout.attention >= 0) config_.attention_dropout = dropout.attention;
  if (dropout.residual >= 0) config_.hidden_dropout = dropout.residual;
  if (dropout.embedding >= 0) config_.embedding_dropout = dropout.embedding;
}

std::unique_ptr<Stage<float>> BertModel::make_stage(const StagePart& part) const {
  return std::make_unique<BertStage<float>>(config_, part, frozen());
}

void BertModel::initialise(std::uint64_t seed, ParameterArena<float>& parameters) const {
  initialize_normal<float>(
      seed, [&](const ParameterInfo&) { return config_.initializer_range; }, parameters);
}

void BertModel::update(Json& json) const {
  if (!fresh().empty()) put_class_names(json, config_.classes);
}

std::unique_ptr<Model> load_bert(const ConfigFile& file, const SafetensorsReader* weights,
                                 std::vector<std::string>& warnings) {
  BertConfig config = BertConfig::read(file);
  std::set<std::string> fresh;
  const auto add = [&](const std::set<std::string>& parameters, const char* name) {
    if (weights == nullptr || holds(*weights, parameters)) return false;
    fresh.insert(parameters.begin(), parameters.end());
    warnings.push_back(printable(file.directory, 200) + ": the weights have no " + name +
                       ": a new one is trained");
    return true;
  };
  add(kPooler, "pooler");
  if (!add(kClassifier, "classifier")) {
    config.classes = read_class_names(file);
    if (config.classes.empty()) config.classes = {"LABEL_0", "LABEL_1"};  // transformers' default
    require_value(config.classes.size() >= 2, file.path, "'id2label' must name two classes or more",
                  std::to_string(config.classes.size()));
  }
  if (weights != nullptr) warn_of_foreign(*weights, bert_names(), file.directory, warnings);
  return std::make_unique<BertModel>(std::move(config), file.json, std::move(fresh));
}

std::unique_ptr<Model> create_bert(const NewModel& shape) {
  BertConfig config;
  config.layers = shape.blocks;
  config.heads = shape.heads;
  config.channels = shape.channels;
  config.hidden = shape.hidden > 0 ? shape.hidden : 4 * shape.channels;
  config.positions = shape.positions;
  config.vocabulary = shape.vocabulary;
  config.hidden_dropout = config.embedding_dropout = config.attention_dropout = 0;
  config.classes = shape.class_names;
  config.check("[model.new]");
  return std::make_unique<BertModel>(std::move(config));
}

}  // namespace deltapipe
