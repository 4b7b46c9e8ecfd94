// SPDX-License-Identifier: BSD-3-Clause
#include "models/gpt2/gpt2_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/base/error.hpp"
#include "core/files/replacement.hpp"
#include "models/config_file.hpp"
#include "models/config_keys.hpp"

namespace deltapipe {

namespace {

constexpr const char* kSupported =
    "deltapipe computes GPT-2 as openai-community/gpt2 and its fine-tuned children set it up";

/// transformers' names of GELU with tanh; the variants differ only in rounding.
constexpr std::array activations = {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh",
                                    "gelu_accurate", "gelu_fast"};

void check_kind(const ConfigKeys& keys) {
  const Json* type = keys.find("model_type");
  if (type == nullptr || *type != "gpt2") {
    keys.refuse("'model_type' must be \"gpt2\"", type == nullptr ? "none" : shown(*type),
                kSupported);
  }
  const Json* activation = keys.find_or_null("activation_function");
  if (activation != nullptr &&
      std::find(activations.begin(), activations.end(), *activation) == activations.end()) {
    std::string names;
    for (const char* name : activations) names += (names.empty() ? "" : ", ") + std::string(name);
    keys.refuse("'activation_function' must be GELU with tanh, by one of its names: " + names,
                shown(*activation), kSupported);
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

Gpt2Config Gpt2Config::load(const std::string& directory) {
  return read(read_config_file(directory));
}

Gpt2Config Gpt2Config::read(const ConfigFile& file) {
  const ConfigKeys keys(file.json, file.path, kSupported);
  check_kind(keys);
  Gpt2Config config;
  keys.integer("n_layer", "num_hidden_layers", config.n_layer);
  keys.integer("n_head", "num_attention_heads", config.n_head);
  keys.integer("n_embd", "hidden_size", config.n_embd);
  keys.integer("n_positions", "max_position_embeddings", config.n_positions);
  keys.integer("vocab_size", config.vocabulary_size);
  config.n_inner = 0;
  const bool has_inner = keys.find("n_inner") != nullptr;
  if (has_inner) keys.integer("n_inner", config.n_inner);
  keys.real("layer_norm_epsilon", config.layer_norm_epsilon);
  keys.real("initializer_range", config.initializer_range);
  keys.real("embd_pdrop", config.embd_pdrop);
  keys.real("attn_pdrop", config.attn_pdrop);
  keys.real("resid_pdrop", config.resid_pdrop);
  keys.boolean("tie_word_embeddings", config.tie_word_embeddings);
  keys.token_id("bos_token_id", config.bos_token_id);
  keys.token_ids("eos_token_id", config.eos_token_ids);
  keys.token_id("pad_token_id", config.pad_token_id);
  // transformers' generate() reads these ids from generation_config.json if that file exists, even
  // if it contains no ids.
  config.generation_begin = config.bos_token_id;
  config.generation_ends = config.eos_token_ids;
  if (const Json generation = read_generation_config(file.directory); generation.is_object()) {
    const ConfigKeys ids(generation, file.directory + "/generation_config.json", kSupported);
    config.generation_begin.reset();
    config.generation_ends.clear();
    ids.token_id("bos_token_id", config.generation_begin);
    ids.token_ids("eos_token_id", config.generation_ends);
  }
  // Absent or null means four times the width. The width is checked before it is multiplied.
  if (!has_inner) config.n_inner = config.n_embd <= (1 << 20) ? 4 * config.n_embd : config.n_embd;
  config.check(file.path);
  return config;
}

void Gpt2Config::check(const std::string& file) const {
  const auto require = [&file](bool holds, const std::string& rule, const std::string& value) {
    if (holds) return;
    throw UserError({.what = rule, .file = file, .value = value, .remedy = "correct config.json"});
  };
  const auto quoted = [](const char* key) { return "'" + std::string(key) + "'"; };
  struct Range {
    const char* key;
    int value;
    int last;
  };
  // Products of two of these fit in 64 bits with a factor of 2^14 to spare.
  const std::array<Range, 6> ranges = {{{"n_layer", n_layer, 1 << 14},
                                        {"n_embd", n_embd, 1 << 18},
                                        {"n_head", n_head, 1 << 14},
                                        {"n_positions", n_positions, 1 << 24},
                                        {"vocab_size", vocabulary_size, 1 << 26},
                                        {"n_inner", n_inner, 1 << 20}}};
  for (const auto& [key, value, last] : ranges)
    require(value >= 1 && value <= last, quoted(key) + " must be from 1 to " + std::to_string(last),
            std::to_string(value));
  require(n_embd % n_head == 0, "'n_embd' must be a multiple of 'n_head'",
          std::to_string(n_embd) + " and " + std::to_string(n_head));
  const std::array<std::pair<const char*, double>, 3> dropouts = {
      {{"embd_pdrop", embd_pdrop}, {"attn_pdrop", attn_pdrop}, {"resid_pdrop", resid_pdrop}}};
  for (const auto& [key, value] : dropouts)
    require(value >= 0 && value < 1, quoted(key) + " must be a probability from 0 to below 1",
            std::to_string(value));
  require(layer_norm_epsilon > 0 && layer_norm_epsilon < 1,
          "'layer_norm_epsilon' must be above 0 and below 1", std::to_string(layer_norm_epsilon));
  require(initializer_range >= 0 && initializer_range < 100,
          "'initializer_range' must be from 0 to below 100", std::to_string(initializer_range));
}

void Gpt2Config::save(const std::string& directory) const {
  const std::string file = config_path(directory);
  check(file);
  Json json;  // keys are written in alphabetical order
  json["activation_function"] = "gelu_new";
  json["architectures"] = {"GPT2LMHeadModel"};
  json["attn_pdrop"] = attn_pdrop;
  json["bos_token_id"] = json_of(bos_token_id);
  json["embd_pdrop"] = embd_pdrop;
  json["eos_token_id"] = json_of(eos_token_ids);
  json["initializer_range"] = initializer_range;
  json["layer_norm_epsilon"] = layer_norm_epsilon;
  json["model_type"] = "gpt2";
  json["n_ctx"] = n_positions;
  json["n_embd"] = n_embd;
  json["n_head"] = n_head;
  json["n_inner"] = n_inner;
  json["n_layer"] = n_layer;
  json["n_positions"] = n_positions;
  json["pad_token_id"] = json_of(pad_token_id);
  json["reorder_and_upcast_attn"] = false;
  json["resid_pdrop"] = resid_pdrop;
  json["scale_attn_by_inverse_layer_idx"] = false;
  json["scale_attn_weights"] = true;
  json["tie_word_embeddings"] = tie_word_embeddings;
  json["use_cache"] = true;
  json["vocab_size"] = vocabulary_size;
  write_file_atomically(file, json.dump(2) + "\n");
}

}  // namespace deltapipe
