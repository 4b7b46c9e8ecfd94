// SPDX-License-Identifier: BSD-3-Clause
#include "models/gpt2/gpt2_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.hpp"
#include "core/files/replacement.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"
#include "models/config_keys.hpp"

namespace deltapipe {

namespace {

constexpr const char* kSupportedGpt2 =
    "deltapipe computes GPT-2 as openai-community/gpt2 and its fine-tuned children set it up";

/// transformers' names of GELU with tanh; the variants differ only in rounding.
constexpr std::array activations = {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh",
                                    "gelu_accurate", "gelu_fast"};

// Products of two integers fit in 64 bits with a factor of 2^14 to spare.
constexpr std::array<IntegerField<Gpt2Config>, 6> kGpt2Integers = {{
    {"n_layer", "num_hidden_layers", &Gpt2Config::n_layer, 1 << 14},
    {"n_head", "num_attention_heads", &Gpt2Config::n_head, 1 << 14},
    {"n_embd", "hidden_size", &Gpt2Config::n_embd, 1 << 18},
    {"n_positions", "max_position_embeddings", &Gpt2Config::n_positions, 1 << 24},
    {"vocab_size", nullptr, &Gpt2Config::vocabulary_size, 1 << 26},
    {"n_inner", nullptr, &Gpt2Config::n_inner, 1 << 20, true},
}};
constexpr std::array<RealField<Gpt2Config>, 5> kGpt2Reals = {{
    {"layer_norm_epsilon", &Gpt2Config::layer_norm_epsilon, kNormEpsilon},
    {"initializer_range", &Gpt2Config::initializer_range, kInitializerRange},
    {"embd_pdrop", &Gpt2Config::embd_pdrop, kProbability},
    {"attn_pdrop", &Gpt2Config::attn_pdrop, kProbability},
    {"resid_pdrop", &Gpt2Config::resid_pdrop, kProbability},
}};

void check_kind(const ConfigKeys& keys) {
  const Json* activation = keys.find_or_null("activation_function");
  if (activation != nullptr &&
      std::find(activations.begin(), activations.end(), *activation) == activations.end()) {
    std::string names;
    for (const char* name : activations) names += (names.empty() ? "" : ", ") + std::string(name);
    keys.refuse("'activation_function' must be GELU with tanh, by one of its names: " + names,
                shown(*activation), kSupportedGpt2);
  }
  keys.expect("scale_attn_weights", true);
  keys.expect("scale_attn_by_inverse_layer_idx", false);
  keys.expect("add_cross_attention", false);
  keys.expect("is_encoder_decoder", false);
  keys.expect("pruned_heads", Json::object());
  if (const Json* quantised = keys.find("quantization_config"))
    keys.refuse("'quantization_config' says that the weights are quantised", shown(*quantised),
                "use the weights from before the quantisation");
  // Only the order of rounding in the attention differs, so both values mean the same model.
  bool reorder = false;
  keys.boolean("reorder_and_upcast_attn", reorder);
}

}  // namespace

Gpt2Config Gpt2Config::read(const ConfigFile& file) {
  const ConfigKeys keys(file.json, file.path, kSupportedGpt2);
  check_kind(keys);
  Gpt2Config config;
  config.n_inner = 0;
  for (const auto& field : kGpt2Integers) read_field(keys, field, config);
  for (const auto& field : kGpt2Reals) read_field(keys, field, config);
  keys.boolean("tie_word_embeddings", config.tie_word_embeddings);
  keys.token_id("bos_token_id", config.bos_token_id);
  keys.token_ids("eos_token_id", config.eos_token_ids);
  keys.token_id("pad_token_id", config.pad_token_id);
  // transformers' generate() reads these ids from generation_config.json if that file exists, even
  // if it contains no ids.
  config.generation_begin = config.bos_token_id;
  config.generation_ends = config.eos_token_ids;
  if (const Json generation = read_generation_config(file.directory); generation.is_object()) {
    const ConfigKeys ids(generation, file.directory + "/generation_config.json", kSupportedGpt2);
    config.generation_begin.reset();
    config.generation_ends.clear();
    ids.token_id("bos_token_id", config.generation_begin);
    ids.token_ids("eos_token_id", config.generation_ends);
  }
  // Absent or null means four times the width. The width is checked before it is multiplied.
  if (keys.find("n_inner") == nullptr)
    config.n_inner = config.n_embd <= (1 << 20) ? 4 * config.n_embd : config.n_embd;
  config.check(file.path);
  return config;
}

void Gpt2Config::check(const std::string& file) const {
  for (const auto& field : kGpt2Integers) check_field(file, field, *this);
  require_value(n_embd % n_head == 0, file, "'n_embd' must be a multiple of 'n_head'",
                fmt::format("{} and {}", n_embd, n_head));
  for (const auto& field : kGpt2Reals) check_field(file, field, *this);
}

std::vector<std::string> Gpt2Config::facts() const {
  std::vector<std::string> facts;
  for (const auto& field : kGpt2Integers) facts.push_back(fact(field.key, this->*field.value));
  for (const auto& field : kGpt2Reals) facts.push_back(fact(field.key, this->*field.value));
  std::string ends;
  for (const int id : eos_token_ids) ends += (ends.empty() ? "" : ", ") + std::to_string(id);
  facts.push_back(fact("tie_word_embeddings", tie_word_embeddings));
  facts.push_back(fact("bos_token_id", bos_token_id.value_or(-1)));
  facts.push_back(fact("eos_token_id", ends));
  facts.push_back(fact("pad_token_id", pad_token_id.value_or(-1)));
  for (const std::string& name : classes) facts.push_back(fact("id2label", name));
  return facts;
}

void Gpt2Config::save(const std::string& directory) const {
  const std::string file = config_path(directory);
  check(file);
  Json json;  // keys are written in alphabetical order
  for (const auto& field : kGpt2Integers) json[field.key] = this->*field.value;
  for (const auto& field : kGpt2Reals) json[field.key] = this->*field.value;
  json["activation_function"] = "gelu_new";
  json["architectures"] = {is_classifier() ? "GPT2ForSequenceClassification" : "GPT2LMHeadModel"};
  if (is_classifier()) put_class_names(json, classes);
  json["bos_token_id"] = json_of(bos_token_id);
  json["eos_token_id"] = json_of(eos_token_ids);
  json["model_type"] = "gpt2";
  json["n_ctx"] = n_positions;
  json["pad_token_id"] = json_of(pad_token_id);
  json["reorder_and_upcast_attn"] = false;
  json["scale_attn_by_inverse_layer_idx"] = false;
  json["scale_attn_weights"] = true;
  json["tie_word_embeddings"] = tie_word_embeddings;
  json["use_cache"] = true;
  write_file_atomically(file, json.dump(2) + "\n");
}

}  // namespace deltapipe
