// SPDX-License-Identifier: BSD-3-Clause
#include "models/encoder_config.hpp"

#include <fmt/format.h>

#include <array>

#include "models/activation_names.hpp"
#include "models/class_names.hpp"

namespace deltapipe {

namespace {

constexpr std::array<IntegerField<EncoderConfig>, 4> kEncoderIntegers = {{
    {"num_hidden_layers", nullptr, &EncoderConfig::layers, 1 << 14},
    {"num_attention_heads", nullptr, &EncoderConfig::heads, 1 << 14},
    {"hidden_size", nullptr, &EncoderConfig::channels, 1 << 18},
    {"intermediate_size", nullptr, &EncoderConfig::hidden, 1 << 20},
}};
constexpr std::array<RealField<EncoderConfig>, 4> kEncoderReals = {{
    {"layer_norm_eps", &EncoderConfig::layer_norm_epsilon, kNormEpsilon},
    {"initializer_range", &EncoderConfig::initializer_range, kInitializerRange},
    {"hidden_dropout_prob", &EncoderConfig::hidden_dropout, kProbability},
    {"attention_probs_dropout_prob", &EncoderConfig::attention_dropout, kProbability},
}};

}  // namespace

void EncoderConfig::read_encoder(const ConfigKeys& keys) {
  check_classifier(keys);
  for (const auto& field : kEncoderIntegers) read_field(keys, field, *this);
  for (const auto& field : kEncoderReals) read_field(keys, field, *this);
  embedding_dropout = hidden_dropout;
  read_activation(keys, "hidden_act", activation);
}

void EncoderConfig::check_encoder(const std::string& file) const {
  for (const auto& field : kEncoderIntegers) check_field(file, field, *this);
  require_value(channels % heads == 0, file,
                "'hidden_size' must be a multiple of 'num_attention_heads'",
                fmt::format("{} and {}", channels, heads));
  for (const auto& field : kEncoderReals) check_field(file, field, *this);
}

void EncoderConfig::add_facts(std::vector<std::string>& facts) const {
  for (const auto& field : kEncoderIntegers) facts.push_back(fact(field.key, this->*field.value));
  for (const auto& field : kEncoderReals) facts.push_back(fact(field.key, this->*field.value));
  facts.push_back(fact("embedding dropout", embedding_dropout));
  facts.push_back(fact("hidden_act", name_of(activation)));
  for (const std::string& name : classes) facts.push_back(fact("id2label", name));
}

void EncoderConfig::put_encoder(Json& json) const {
  for (const auto& field : kEncoderIntegers) json[field.key] = this->*field.value;
  for (const auto& field : kEncoderReals) json[field.key] = this->*field.value;
  json["hidden_act"] = name_of(activation);
  put_class_names(json, classes);
}

void read_classifier_dropout(const ConfigKeys& keys, const std::string& file, const char* key,
                             double& dropout) {
  if (keys.find(key) == nullptr) return;
  keys.real(key, dropout);
  require_value(dropout >= 0, file, fmt::format("'{}' must be {}", key, kProbability.text),
                fmt::format("{}", dropout));
}

double encoder_block_cost(const EncoderConfig& config, int tokens) {
  const double C = config.channels, F = config.hidden, T = tokens;
  // A multiply-add counts as two operations, and the backward pass as two forward passes.
  // Attention's scores are recomputed in the backward pass.
  return 3 * 2 * T * (4 * C * C + 2 * C * F) + 2 * T * T * C * 7;
}

}  // namespace deltapipe
