// SPDX-License-Identifier: BSD-3-Clause
#include "models/bert/bert_config.hpp"

#include <array>

#include "core/base/error.hpp"
#include "core/files/replacement.hpp"
#include "models/activation_names.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"
#include "models/config_keys.hpp"

namespace deltapipe {

namespace {

constexpr const char* kSupported =
    "deltapipe computes BERT as bert-base-uncased and its fine-tuned children set it up";

constexpr const char* kProbability = "a probability from 0 to below 1";
bool is_probability(double p) {
  return p >= 0 && p < 1;
}

constexpr std::array<IntegerField<BertConfig>, 7> kIntegers = {{
    {"num_hidden_layers", nullptr, &BertConfig::layers, 1 << 14},
    {"num_attention_heads", nullptr, &BertConfig::heads, 1 << 14},
    {"hidden_size", nullptr, &BertConfig::channels, 1 << 18},
    {"intermediate_size", nullptr, &BertConfig::hidden, 1 << 20},
    {"max_position_embeddings", nullptr, &BertConfig::positions, 1 << 24},
    {"vocab_size", nullptr, &BertConfig::vocabulary, 1 << 26},
    {"type_vocab_size", nullptr, &BertConfig::segments, 64},
}};
constexpr std::array<RealField<BertConfig>, 4> kReals = {{
    {"layer_norm_eps", &BertConfig::layer_norm_epsilon, "above 0 and below 1",
     [](double x) { return x > 0 && x < 1; }},
    {"initializer_range", &BertConfig::initializer_range, "from 0 to below 100",
     [](double x) { return x >= 0 && x < 100; }},
    {"hidden_dropout_prob", &BertConfig::hidden_dropout, kProbability, is_probability},
    {"attention_probs_dropout_prob", &BertConfig::attention_dropout, kProbability, is_probability},
}};

void check_kind(const ConfigKeys& keys) {
  keys.expect("position_embedding_type", "absolute");
  keys.expect("is_decoder", false);
  keys.expect("add_cross_attention", false);
  keys.expect("pruned_heads", Json::object());
  if (const Json* problem = keys.find("problem_type");
      problem != nullptr && *problem != "single_label_classification")
    keys.refuse("'problem_type' must be \"single_label_classification\"", shown(*problem),
                "deltapipe trains classifiers with one label for each text");
  if (const Json* quantised = keys.find("quantization_config"))
    keys.refuse("'quantization_config' says that the weights are quantised", shown(*quantised),
                "use the weights from before the quantisation");
}

}  // namespace

BertConfig BertConfig::read(const ConfigFile& file) {
  const ConfigKeys keys(file.json, file.path, kSupported);
  check_kind(keys);
  BertConfig config;
  for (const auto& field : kIntegers) read_field(keys, field, config);
  for (const auto& field : kReals) read_field(keys, field, config);
  config.embedding_dropout = config.hidden_dropout;
  read_activation(keys, "hidden_act", config.activation);
  if (keys.find("classifier_dropout") != nullptr)
    keys.real("classifier_dropout", config.classifier_dropout);
  config.check(file.path);
  return config;
}

void BertConfig::check(const std::string& file) const {
  for (const auto& field : kIntegers) check_field(file, field, *this);
  require_value(channels % heads == 0, file,
                "'hidden_size' must be a multiple of 'num_attention_heads'",
                std::to_string(channels) + " and " + std::to_string(heads));
  for (const auto& field : kReals) check_field(file, field, *this);
  require_value(classifier_dropout < 1, file,
                std::string("'classifier_dropout' must be ") + kProbability,
                std::to_string(classifier_dropout));
}

std::vector<std::string> BertConfig::facts() const {
  std::vector<std::string> facts;
  for (const auto& field : kIntegers) facts.push_back(fact(field.key, this->*field.value));
  for (const auto& field : kReals) facts.push_back(fact(field.key, this->*field.value));
  facts.push_back(fact("embedding dropout", embedding_dropout));
  facts.push_back(fact("hidden_act", name_of(activation)));
  facts.push_back(fact("classifier_dropout", head_dropout()));
  for (const std::string& name : classes) facts.push_back(fact("id2label", name));
  return facts;
}

void BertConfig::save(const std::string& directory) const {
  const std::string file = config_path(directory);
  check(file);
  Json json;  // keys are written in alphabetical order
  for (const auto& field : kIntegers) json[field.key] = this->*field.value;
  for (const auto& field : kReals) json[field.key] = this->*field.value;
  json["architectures"] = {"BertForSequenceClassification"};
  json["classifier_dropout"] = head_dropout();
  json["hidden_act"] = name_of(activation);
  json["model_type"] = "bert";
  json["pad_token_id"] = 0;
  put_class_names(json, classes);
  write_file_atomically(file, json.dump(2) + "\n");
}

}  // namespace deltapipe
