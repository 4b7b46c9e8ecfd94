// SPDX-License-Identifier: BSD-3-Clause
#include "models/gpt2/gpt2_config.hpp"

#include <catch2/catch.hpp>
#include <filesystem>

#include "core/base/error.hpp"
#include "core/files/json.hpp"
#include "models/config_file.hpp"
#include "models/model.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using deltapipe::testing::message_of;
using deltapipe::testing::read_bytes;
using deltapipe::testing::TemporaryDirectory;
using deltapipe::testing::write_bytes;

TEST_CASE("GPT-2's own config.json is understood", "[files][config]") {
  const TemporaryDirectory directory;
  // The values of gpt2-xl, with keys that do not concern the computation.
  write_bytes(directory / "config.json", R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.2,
    "bos_token_id": 50256, "embd_pdrop": 0.3, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-06, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1600,
    "n_head": 25, "n_layer": 48, "n_positions": 1024, "n_inner": null, "output_past": true,
    "resid_pdrop": 0.4, "reorder_and_upcast_attn": true, "summary_type": "cls_index",
    "task_specific_params": {"text-generation": {"do_sample": true}}, "vocab_size": 50257})");
  const Gpt2Config config = Gpt2Config::read(read_config_file(directory.path()));
  CHECK(config.n_layer == 48);
  CHECK(config.n_head == 25);
  CHECK(config.n_embd == 1600);
  CHECK(config.n_inner == 6400);
  CHECK(config.n_positions == 1024);
  CHECK(config.vocabulary_size == 50257);
  CHECK(config.layer_norm_epsilon == 1e-6);
  CHECK(config.attn_pdrop == 0.2);
  CHECK(config.embd_pdrop == 0.3);
  CHECK(config.resid_pdrop == 0.4);
  CHECK(config.tie_word_embeddings);
}

TEST_CASE("An empty GPT-2 config has transformers' defaults", "[files][config]") {
  const TemporaryDirectory directory;
  write_bytes(directory / "config.json", R"({"model_type": "gpt2"})");
  const Gpt2Config config = Gpt2Config::read(read_config_file(directory.path()));
  CHECK(config.n_layer == 12);
  CHECK(config.n_inner == 3072);
  CHECK(config.layer_norm_epsilon == 1e-5);
  CHECK(config.attn_pdrop == 0.1);
  CHECK(config.bos_token_id == 50256);
  CHECK(config.eos_token_ids == std::vector<int>{50256});
  CHECK_FALSE(config.pad_token_id.has_value());
}

TEST_CASE("A config.json of transformers 5 is understood", "[files][config]") {
  const TemporaryDirectory directory;
  const std::string text = R"({
    "activation_function": "gelu_pytorch_tanh", "add_cross_attention": false, "architectures":
    ["GPT2LMHeadModel"], "attn_pdrop": 0, "bos_token_id": null, "dtype": "float32", "embd_pdrop": 0.1,
    "eos_token_id": [7, 9], "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type":
    "gpt2", "n_embd": 32, "n_head": 4, "n_inner": null, "n_layer": 2, "n_positions": 32,
    "pad_token_id": 3, "reorder_and_upcast_attn": false, "resid_pdrop": 0.1,
    "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true, "summary_activation": null,
    "tie_word_embeddings": false, "transformers_version": "5.23.0", "vocab_size": 27})";
  write_bytes(directory / "config.json", text);
  const Gpt2Config config = Gpt2Config::read(read_config_file(directory.path()));
  CHECK(config.n_inner == 128);
  CHECK(config.vocabulary_size == 27);
  CHECK_FALSE(config.tie_word_embeddings);
  config.save(directory.path());  // token ids and their absence come back
  const Gpt2Config again = Gpt2Config::read(read_config_file(directory.path()));
  for (const Gpt2Config& c : {config, again}) {
    CHECK_FALSE(c.bos_token_id.has_value());
    CHECK(c.eos_token_ids == std::vector<int>{7, 9});
    CHECK(c.pad_token_id == 3);
  }
}

TEST_CASE("Other names and generation_config.json are read as transformers reads them",
          "[files][config]") {
  const TemporaryDirectory directory;
  write_bytes(
      directory / "config.json",
      R"({"model_type": "gpt2", "num_attention_heads": 6, "hidden_size": 48, "n_inner": null,
                  "num_hidden_layers": 3, "max_position_embeddings": 64, "eos_token_id": [3, 4]})");
  Gpt2Config config = Gpt2Config::read(read_config_file(directory.path()));
  CHECK(config.n_head == 6);
  CHECK(config.n_embd == 48);
  CHECK(config.n_inner == 192);
  CHECK(config.n_layer == 3);
  CHECK(config.n_positions == 64);
  CHECK(config.generation_ends == std::vector<int>{3, 4});
  CHECK(config.generation_begin == 50256);
  write_bytes(directory / "generation_config.json", R"({"eos_token_id": [5, 6], "top_k": 5})");
  config = Gpt2Config::read(read_config_file(directory.path()));
  CHECK(config.generation_ends == std::vector<int>{5, 6});
  CHECK_FALSE(config.generation_begin.has_value());
  write_bytes(directory / "generation_config.json", "{}");
  CHECK(Gpt2Config::read(read_config_file(directory.path())).generation_ends.empty());
}

TEST_CASE("A model's config.json keeps all that training does not change", "[files][config]") {
  const TemporaryDirectory directory;
  const Json source = Json::parse(R"({"model_type": "gpt2", "n_embd": 48, "n_head": 3,
      "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "torch_dtype": "float16",
      "n_inner": null, "task_specific_params": {"a": [1, null]}, "activation_function": "gelu_fast",
      "architectures": ["GPT2LMHeadModel"]})");
  write_bytes(directory / "config.json", source.dump());
  std::vector<std::string> warnings;
  const auto model = load_model(directory.path(), nullptr, warnings);
  model->set_dropout({0, 0, 0});
  CHECK(model->dropout().embedding == 0);
  const std::string saved = directory / "saved";
  std::filesystem::create_directory(saved);
  model->save_configuration(saved, Precision::fp32);
  Json expected = source;
  expected["torch_dtype"] = "float32";
  CHECK(Json::parse(read_bytes(saved + "/config.json")) == expected);
}

TEST_CASE("A saved GPT-2 config loads as it was", "[files][config]") {
  const TemporaryDirectory directory;
  Gpt2Config config;
  config.n_layer = 3;
  config.n_head = 7;
  config.n_embd = 49;
  config.n_inner = 100;
  config.n_positions = 33;
  config.vocabulary_size = 1001;
  config.layer_norm_epsilon = 1.1e-7;
  config.embd_pdrop = 0;
  config.attn_pdrop = 0.1;
  config.resid_pdrop = 1.0 / 3;
  config.tie_word_embeddings = false;
  config.bos_token_id = 0;
  config.eos_token_ids = {1000};
  config.save(directory.path());
  const Gpt2Config loaded = Gpt2Config::read(read_config_file(directory.path()));
  CHECK(loaded.n_inner == 100);
  CHECK(loaded.layer_norm_epsilon == 1.1e-7);
  CHECK(loaded.resid_pdrop == 1.0 / 3);
  CHECK_FALSE(loaded.tie_word_embeddings);
  CHECK(loaded.eos_token_ids == std::vector<int>{1000});
  const std::string text = read_bytes(directory / "config.json");
  loaded.save(directory.path());
  CHECK(read_bytes(directory / "config.json") == text);
  CHECK_THROWS_AS(config.save(directory / "missing"), UserError);
}

TEST_CASE("GPT-2 configs that cannot be computed are refused", "[files][config]") {
  struct Broken {
    const char* text;
    const char* expected;
  };
  const Broken table[] = {
      {"", "is not valid JSON"},
      {"{\"model_type\": \"gpt2\"", "is not valid JSON"},
      {"[1]", "not a JSON object"},
      {R"({"model_type": "gpt2", "activation_function": "relu"})",
       "by one of its names: gelu_new, gelu_pytorch_tanh, gelu_python_tanh, gelu_accurate, "
       "gelu_fast "
       "(got \"relu\")"},
      {R"({"model_type": "gpt2", "activation_function": null})", "(got null)"},
      {R"({"model_type": "gpt2", "n_head": null})", "'n_head' must be a whole number"},
      {R"({"model_type": "gpt2", "tie_word_embeddings": null})", "must be true or false"},
      {R"({"model_type": "gpt2", "n_head": 12, "num_attention_heads": 6})", "(got 12 and 6)"},
      {R"({"model_type": "gpt2", "pruned_heads": {"0": [1]}})", "'pruned_heads'"},
      {R"({"model_type": "gpt2", "quantization_config": {"bits": 4}})", "quantised"},
      {R"({"model_type": "gpt2", "activation_function": "gelu"})", "(got \"gelu\")"},
      {R"({"model_type": "gpt2", "eos_token_id": [1, "x"]})", "'eos_token_id' must be a whole"},
      {R"({"model_type": "gpt2", "bos_token_id": -1})", "'bos_token_id' must be a whole"},
      {R"({"model_type": "gpt2", "scale_attn_weights": false})", "'scale_attn_weights'"},
      {R"({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true})", "inverse_layer_idx"},
      {R"({"model_type": "gpt2", "add_cross_attention": true})", "'add_cross_attention'"},
      {R"({"model_type": "gpt2", "reorder_and_upcast_attn": 1})", "must be true or false"},
      {R"({"model_type": "gpt2", "n_head": 5})",
       "'n_embd' must be a multiple of 'n_head' (got 768 and 5)"},
      {R"({"model_type": "gpt2", "n_head": 0})", "'n_head' must be from 1"},
      {R"({"model_type": "gpt2", "n_layer": 0})", "'n_layer' must be from 1"},
      {R"({"model_type": "gpt2", "n_layer": -1})", "'n_layer' must be a whole number"},
      {R"({"model_type": "gpt2", "n_layer": 1.5})", "'n_layer' must be a whole number"},
      {R"({"model_type": "gpt2", "n_layer": "12"})", "'n_layer' must be a whole number"},
      {R"({"model_type": "gpt2", "n_layer": 20000})", "'n_layer' must be from 1 to 16384"},
      {R"({"model_type": "gpt2", "n_embd": 2147483640})", "'n_embd' must be from 1"},
      {R"({"model_type": "gpt2", "n_embd": 4294967308})", "'n_embd' must be a whole number"},
      {R"({"model_type": "gpt2", "n_embd": 18446744073709551615})", "must be a whole number"},
      {R"({"model_type": "gpt2", "n_positions": 1e9})", "'n_positions' must be a whole number"},
      {R"({"model_type": "gpt2", "n_inner": 0})", "'n_inner' must be from 1"},
      {R"({"model_type": "gpt2", "vocab_size": 0})", "'vocab_size' must be from 1"},
      {R"({"model_type": "gpt2", "attn_pdrop": 1})", "'attn_pdrop' must be a probability"},
      {R"({"model_type": "gpt2", "embd_pdrop": -0.1})", "'embd_pdrop' must be a probability"},
      {R"({"model_type": "gpt2", "resid_pdrop": "0"})", "'resid_pdrop' must be a number"},
      {R"({"model_type": "gpt2", "layer_norm_epsilon": 0})", "'layer_norm_epsilon'"},
      {R"({"model_type": "gpt2", "layer_norm_epsilon": 1e999})",
       "config.json:1:51: is not valid JSON: number"},
      {R"({"model_type": "gpt2", "tie_word_embeddings": 1})", "must be true or false"},
  };
  const TemporaryDirectory directory;
  for (const Broken& broken : table) {
    INFO(broken.text);
    write_bytes(directory / "config.json", broken.text);
    const std::string message =
        message_of<UserError>([&] { Gpt2Config::read(read_config_file(directory.path())); });
    CHECK(message.find((directory / "config.json") + ":") == 0);
    CHECK_THAT(message, Catch::Matchers::Contains(broken.expected));
  }
  CHECK_THROWS_AS(Gpt2Config::read(read_config_file(directory / "missing")), UserError);
}
