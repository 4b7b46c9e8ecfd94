// SPDX-License-Identifier: BSD-3-Clause
#include "models/deberta/deberta_config.hpp"

#include <fmt/format.h>

#include <array>

#include "core/base/error.hpp"
#include "core/files/replacement.hpp"
#include "models/activation_names.hpp"
#include "models/config_file.hpp"
#include "models/config_keys.hpp"

namespace deltapipe {

namespace {

constexpr const char* kSupportedDeberta =
    "deltapipe computes DeBERTa as deberta-v2-xlarge, deberta-v3-base and their fine-tuned "
    "children set it up";
constexpr int kMostPositions = 1 << 24;

constexpr std::array<IntegerField<DebertaConfig>, 2> kDebertaIntegers = {{
    {"max_position_embeddings", nullptr, &DebertaConfig::positions, kMostPositions},
    {"vocab_size", nullptr, &DebertaConfig::vocabulary, 1 << 26},
}};

void check_kind(const ConfigKeys& keys, const DebertaConfig& config) {
  keys.expect("relative_attention", true);
  keys.expect("embedding_size", config.channels);
  keys.expect("attention_head_size", config.channels / config.heads);
  keys.expect("pooler_hidden_size", config.channels);
  keys.expect("pooler_dropout", 0);
  keys.expect("conv_groups", 1);
  if (keys.find("relative_attention") == nullptr)
    keys.refuse("'relative_attention' must be true", "no such key", kSupportedDeberta);
}

/// Reads a number that is -1 if it is not set.
void read_optional(const ConfigKeys& keys, const char* key, int& target) {
  const Json* const value = keys.find_or_null(key);
  if (value != nullptr && *value != -1) keys.integer(key, target);
}

/// Reads "p2c|c2p" or a list of the two.
void read_scores(const ConfigKeys& keys, DebertaConfig& config) {
  const Json* const value = keys.find_or_null("pos_att_type");
  const auto refuse = [&](const std::string& shown_value) {
    keys.refuse("'pos_att_type' must be \"c2p\", \"p2c\" or both, as in \"p2c|c2p\"", shown_value,
                kSupportedDeberta);
  };
  if (value == nullptr) refuse("none");
  std::vector<std::string> kinds;
  if (value->is_string()) {
    std::string text = value->get<std::string>();
    for (std::size_t bar = text.find('|'); bar != std::string::npos; bar = text.find('|')) {
      kinds.push_back(text.substr(0, bar));
      text.erase(0, bar + 1);
    }
    kinds.push_back(text);
  } else if (value->is_array()) {
    for (const Json& kind : *value)
      kinds.push_back(kind.is_string() ? kind.get<std::string>() : "");
  }
  if (kinds.empty()) refuse(shown(*value));
  for (std::string kind : kinds) {
    kind.erase(0, kind.find_first_not_of(' '));
    kind.erase(kind.find_last_not_of(' ') + 1);
    if (kind == "c2p")
      config.content_to_position = true;
    else if (kind == "p2c")
      config.position_to_content = true;
    else
      refuse(shown(*value));
  }
}

void read_relative_norm(const ConfigKeys& keys, DebertaConfig& config) {
  const Json* const value = keys.find_or_null("norm_rel_ebd");
  if (value == nullptr || *value == "none") return;
  if (*value != "layer_norm")
    keys.refuse("'norm_rel_ebd' must be \"none\" or \"layer_norm\"", shown(*value),
                kSupportedDeberta);
  config.normalizes_relative = true;
}

}  // namespace

DebertaConfig DebertaConfig::read(const ConfigFile& file) {
  const ConfigKeys keys(file.json, file.path, kSupportedDeberta);
  DebertaConfig config;
  config.read_encoder(keys);
  for (const auto& field : kDebertaIntegers) read_field(keys, field, config);
  config.check_encoder(file.path);
  check_kind(keys, config);
  keys.integer("type_vocab_size", config.segments);
  keys.boolean("position_biased_input", config.position_biased_input);
  read_optional(keys, "position_buckets", config.position_buckets);
  read_optional(keys, "max_relative_positions", config.max_relative_positions);
  keys.boolean("share_att_key", config.shares_attention_key);
  read_scores(keys, config);
  read_relative_norm(keys, config);
  keys.integer("conv_kernel_size", config.convolution_width);
  if (config.convolution_width > 0) {
    if (keys.find_or_null("conv_act") == nullptr)
      keys.refuse("'conv_act' must name an activation", "none, which means tanh",
                  kSupportedDeberta);
    read_activation(keys, "conv_act", config.convolution_activation);
  }
  read_activation(keys, "pooler_hidden_act", config.pooler_activation);
  read_classifier_dropout(keys, file.path, "cls_dropout", config.classifier_dropout);
  config.check(file.path);
  return config;
}

void DebertaConfig::check(const std::string& file) const {
  check_encoder(file);
  for (const auto& field : kDebertaIntegers) check_field(file, field, *this);
  require_value(segments >= 0 && segments <= 64, file, "'type_vocab_size' must be from 0 to 64",
                std::to_string(segments));
  require_value(
      position_buckets <= 0 || (position_buckets >= 2 && position_buckets <= kMostPositions), file,
      "'position_buckets' must be -1, or at least 2", std::to_string(position_buckets));
  require_value(max_relative_positions <= kMostPositions, file,
                "'max_relative_positions' is too large", std::to_string(max_relative_positions));
  require_value(position_buckets <= 0 || buckets().longest > position_buckets / 2 + 1, file,
                "'max_relative_positions' must be above 'position_buckets' / 2 + 1",
                fmt::format("{} and {}", buckets().longest, position_buckets));
  require_value(convolution_width == 0 ||
                    (convolution_width > 0 && convolution_width < 64 && convolution_width % 2 == 1),
                file, "'conv_kernel_size' must be 0 or odd and below 64",
                std::to_string(convolution_width));
  require_value(classifier_dropout < 1, file, "'cls_dropout' must be below 1",
                fmt::format("{}", classifier_dropout));
}

std::vector<std::string> DebertaConfig::facts() const {
  std::vector<std::string> facts;
  Json json;
  put(json);
  for (const auto& [key, value] : json.items()) facts.push_back(key + " = " + value.dump());
  facts.push_back(fact("cls_dropout", head_dropout()));
  facts.push_back(fact("trained relative embeddings", trains_relative));
  add_facts(facts);
  return facts;
}

void DebertaConfig::put(Json& json) const {
  for (const auto& field : kDebertaIntegers) json[field.key] = this->*field.value;
  json["type_vocab_size"] = segments;
  json["position_biased_input"] = position_biased_input;
  json["position_buckets"] = position_buckets;
  json["max_relative_positions"] = max_relative_positions;
  json["share_att_key"] = shares_attention_key;
  json["norm_rel_ebd"] = normalizes_relative ? "layer_norm" : "none";
  json["pos_att_type"] = Json::array();
  if (position_to_content) json["pos_att_type"].push_back("p2c");
  if (content_to_position) json["pos_att_type"].push_back("c2p");
  json["conv_kernel_size"] = convolution_width;
  if (convolution_width > 0) json["conv_act"] = name_of(convolution_activation);
  json["pooler_hidden_act"] = name_of(pooler_activation);
}

void DebertaConfig::save(const std::string& directory) const {
  const std::string file = config_path(directory);
  check(file);
  Json json;  // keys are written in alphabetical order
  put(json);
  put_encoder(json);
  json["architectures"] = {"DebertaV2ForSequenceClassification"};
  json["cls_dropout"] = head_dropout();
  json["model_type"] = "deberta-v2";
  json["pad_token_id"] = 0;
  json["pooler_dropout"] = 0;
  json["pooler_hidden_size"] = channels;
  json["relative_attention"] = true;
  write_file_atomically(file, json.dump(2) + "\n");
}

}  // namespace deltapipe
