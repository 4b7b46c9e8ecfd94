// SPDX-License-Identifier: BSD-3-Clause
#include "models/bert/bert_config.hpp"

#include <fmt/format.h>

#include <array>

#include "core/base/error.hpp"
#include "core/files/replacement.hpp"
#include "models/config_file.hpp"
#include "models/config_keys.hpp"

namespace deltapipe {

namespace {

constexpr const char* kSupportedBert =
    "deltapipe computes BERT as bert-base-uncased and its fine-tuned children set it up";

constexpr std::array<IntegerField<BertConfig>, 3> kBertIntegers = {{
    {"max_position_embeddings", nullptr, &BertConfig::positions, 1 << 24},
    {"vocab_size", nullptr, &BertConfig::vocabulary, 1 << 26},
    {"type_vocab_size", nullptr, &BertConfig::segments, 64},
}};

void check_kind(const ConfigKeys& keys) {
  keys.expect("position_embedding_type", "absolute");
  keys.expect("is_decoder", false);
  keys.expect("add_cross_attention", false);
  keys.expect("pruned_heads", Json::object());
}

}  // namespace

BertConfig BertConfig::read(const ConfigFile& file) {
  const ConfigKeys keys(file.json, file.path, kSupportedBert);
  check_kind(keys);
  BertConfig config;
  config.read_encoder(keys);
  for (const auto& field : kBertIntegers) read_field(keys, field, config);
  read_classifier_dropout(keys, file.path, "classifier_dropout", config.classifier_dropout);
  config.check(file.path);
  return config;
}

void BertConfig::check(const std::string& file) const {
  check_encoder(file);
  for (const auto& field : kBertIntegers) check_field(file, field, *this);
  require_value(classifier_dropout < 1, file, "'classifier_dropout' must be below 1",
                fmt::format("{}", classifier_dropout));
}

std::vector<std::string> BertConfig::facts() const {
  std::vector<std::string> facts;
  for (const auto& field : kBertIntegers) facts.push_back(fact(field.key, this->*field.value));
  facts.push_back(fact("classifier_dropout", head_dropout()));
  add_facts(facts);
  return facts;
}

void BertConfig::save(const std::string& directory) const {
  const std::string file = config_path(directory);
  check(file);
  Json json;  // keys are written in alphabetical order
  for (const auto& field : kBertIntegers) json[field.key] = this->*field.value;
  put_encoder(json);
  json["architectures"] = {"BertForSequenceClassification"};
  json["classifier_dropout"] = head_dropout();
  json["model_type"] = "bert";
  json["pad_token_id"] = 0;
  write_file_atomically(file, json.dump(2) + "\n");
}

}  // namespace deltapipe
