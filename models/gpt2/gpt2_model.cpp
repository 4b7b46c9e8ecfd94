// SPDX-License-Identifier: BSD-3-Clause
#include "models/gpt2/gpt2_model.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"

namespace deltapipe {

const WeightNames& gpt2_names() {
  static const WeightNames names = {
      "GPT2LMHeadModel", "transformer.", {"lm_head.weight"}, {"wte.", "wpe.", "h.", "ln_f."},
      "n_layer",         "h.",           "ln_1.weight"};
  return names;
}

const WeightNames& gpt2_classifier_names() {
  static const WeightNames names = {"GPT2ForSequenceClassification",
                                    "transformer.",
                                    {"score.weight"},
                                    {"wte.", "wpe.", "h.", "ln_f."},
                                    "n_layer",
                                    "h.",
                                    "ln_1.weight"};
  return names;
}

namespace {

bool ends_texts(const Gpt2Config& config, const std::optional<int>& token) {
  const std::vector<int>& ends = config.eos_token_ids;
  return token && std::find(ends.begin(), ends.end(), *token) != ends.end();
}

}  // namespace

Gpt2Model::Gpt2Model(Gpt2Config config, Json file)
    : FileModel(gpt2_names(), std::move(file)), config_(std::move(config)) {
  if (config_.is_classifier()) classify();
}

void Gpt2Model::set_class_names(const std::vector<std::string>& names) {
  config_.classes = names;
  fresh_ = {"score.weight"};
  classify();
}

void Gpt2Model::classify() {
  if (ends_texts(config_, config_.pad_token_id)) config_.pad_token_id.reset();
  rename(gpt2_classifier_names());
  task_ = make_task("classification", static_cast<int>(config_.classes.size()));
}

ModelShape Gpt2Model::shape() const {
  return {config_.n_layer, config_.n_embd, config_.n_positions, config_.vocabulary_size,
          config_.is_tied()};
}

std::string Gpt2Model::description() const {
  return fmt::format(
      "GPT-2 of {} blocks x {} channels{}", config_.n_layer, config_.n_embd,
      config_.is_classifier() ? fmt::format(", {} classes", config_.classes.size()) : "");
}

DropoutProbabilities Gpt2Model::dropout() const {
  return {config_.embd_pdrop, config_.attn_pdrop, config_.resid_pdrop};
}

void Gpt2Model::set_dropout(const DropoutProbabilities& dropout) {
  if (dropout.embedding >= 0) config_.embd_pdrop = dropout.embedding;
  if (dropout.attention >= 0) config_.attn_pdrop = dropout.attention;
  if (dropout.residual >= 0) config_.resid_pdrop = dropout.residual;
}

std::unique_ptr<Stage<float>> Gpt2Model::make_stage(const StagePart& part) const {
  return std::make_unique<Gpt2Stage<float>>(config_, part, frozen());
}

void Gpt2Model::update(Json& json) const {
  if (json.value("tie_word_embeddings", true) != config_.tie_word_embeddings)
    json["tie_word_embeddings"] = config_.tie_word_embeddings;
  if (!config_.is_classifier()) return;
  if (!fresh().empty()) put_class_names(json, config_.classes);
  json["pad_token_id"] = json_of(config_.pad_token_id);
}

TextEnds Gpt2Model::text_ends() const {
  if (config_.is_classifier()) return {};
  return {config_.generation_begin.value_or(-1),
          {config_.generation_ends.begin(), config_.generation_ends.end()}};
}

std::map<std::string, std::string> Gpt2Model::tied_names() const {
  if (!config_.is_tied()) return {};
  return {{"lm_head.weight", "wte.weight"}};
}

namespace {

bool names_classifier(const ConfigFile& file) {
  const auto names = file.json.find("architectures");
  return names != file.json.end() && names->is_array() &&
         std::find(names->begin(), names->end(), gpt2_classifier_names().architecture) !=
             names->end();
}

/// Loads a GPT2ForSequenceClassification.
std::unique_ptr<Model> load_classifier(const ConfigFile& file, const SafetensorsReader* weights,
                                       std::vector<std::string>& warnings) {
  Gpt2Config config = Gpt2Config::read(file);
  check_classifier(ConfigKeys(file.json, file.path, "use a model with one label for each text"));
  config.classes = classes_of_classifier(file);
  if (ends_texts(config, config.pad_token_id))
    warnings.push_back(printable(file.directory, 200) +
                       ": pad_token_id is the token that ends a text, which is not padding here; "
                       "the saved model has no pad_token_id");
  if (weights != nullptr)
    warn_of_foreign(*weights, gpt2_classifier_names(), file.directory, warnings);
  return std::make_unique<Gpt2Model>(std::move(config), file.json);
}

}  // namespace

std::unique_ptr<Model> load_gpt2(const ConfigFile& file, const SafetensorsReader* weights,
                                 std::vector<std::string>& warnings) {
  if (names_classifier(file)) return load_classifier(file, weights, warnings);
  Gpt2Config config = Gpt2Config::read(file);
  if (config.tie_word_embeddings && weights != nullptr &&
      has_own_matrix(*weights, gpt2_names(), "lm_head.weight", "wte.weight")) {
    config.tie_word_embeddings = false;
    warnings.push_back(printable(file.directory, 200) +
                       ": config.json says tie_word_embeddings, but lm_head.weight is another "
                       "matrix than transformer.wte.weight: both are kept, untied, as transformers "
                       "5 does; to tie them, remove lm_head.weight");
  }
  if (weights != nullptr) warn_of_foreign(*weights, gpt2_names(), file.directory, warnings);
  return std::make_unique<Gpt2Model>(std::move(config), file.json);
}

std::unique_ptr<Model> create_gpt2(const NewModel& shape) {
  Gpt2Config config;
  config.n_layer = shape.blocks;
  config.n_head = shape.heads;
  config.n_embd = shape.channels;
  config.n_inner = shape.hidden > 0 ? shape.hidden : 4 * shape.channels;
  config.n_positions = shape.positions;
  config.vocabulary_size = shape.vocabulary;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0;
  config.bos_token_id.reset();
  config.eos_token_ids.clear();
  if (shape.end_of_text >= 0) {
    config.bos_token_id = shape.end_of_text;
    config.eos_token_ids = {shape.end_of_text};
  }
  config.generation_begin = config.bos_token_id;
  config.generation_ends = config.eos_token_ids;
  config.classes = shape.class_names;
  config.check("[model.new]");
  return std::make_unique<Gpt2Model>(std::move(config));
}

}  // namespace deltapipe
