// SPDX-License-Identifier: BSD-3-Clause
#include "models/parameter_patterns.hpp"

#include <catch2/catch.hpp>

using namespace deltapipe;

namespace {

std::unique_ptr<Model> model_of(int blocks) {
  NewModel shape;
  shape.blocks = blocks;
  shape.heads = 1;
  shape.channels = 4;
  shape.positions = 3;
  shape.vocabulary = 5;
  return model_types().front().create(shape);
}

}  // namespace

TEST_CASE("A pattern names a tensor, a module or what the shell would match", "[patterns]") {
  const std::string name = "h.1.attn.c_attn.weight";
  for (const char* const pattern :
       {"h.1.attn.c_attn.weight", "h.1.attn.c_attn", "h.1.attn", "h.1", "h", "*", "h.*", "h.1.*",
        "h.?", "h.[0-2]", "h.[!0]", "*.weight", "*c_attn*", "h.*.attn", "h.1.attn.c_*.weight"}) {
    CAPTURE(pattern);
    CHECK(matches_parameter(pattern, name));
  }
  for (const char* const pattern :
       {"", "h.", "h.1.", "h.10", "h.1.att", "attn", "c_attn.weight", "weight", "H.1", "h.2",
        "h.[!1]", "??", "h?1.mlp", "h.1.attn.c_attn.weight.x", "*.bias", "h.[", "h.1\\"}) {
    CAPTURE(pattern);
    CHECK_FALSE(matches_parameter(pattern, name));
  }
  CHECK_FALSE(matches_parameter("h.1", "h.10.ln_1.bias"));
  CHECK(matches_parameter("h.1*", "h.10.ln_1.bias"));
}

TEST_CASE("A pattern with many stars is answered at once", "[patterns]") {
  std::string pattern;
  for (int i = 0; i < 40; ++i) pattern += "*a";
  CHECK_FALSE(matches_parameter(pattern + "b", std::string(200, 'a')));
}

TEST_CASE("Parameters are known by their own names and by those of the saved file", "[patterns]") {
  const std::unique_ptr<Model> model = model_of(11);
  const std::vector<std::string> wte = {"wte.weight"};
  CHECK(matching_parameters(*model, "wte") == wte);
  CHECK(matching_parameters(*model, "transformer.wte.weight") == wte);
  CHECK(matching_parameters(*model, "transformer.wte") == wte);
  CHECK(matching_parameters(*model, "h.1").size() == 12);
  CHECK(matching_parameters(*model, "transformer.h.1?").size() == 12);
  CHECK(matching_parameters(*model, "h").size() == 132);
  CHECK(matching_parameters(*model, "transformer").size() == 136);
  CHECK(matching_parameters(*model, "h.11").empty());
  CHECK(matching_parameters(*model, "lm_head").empty());  // tied: it is wte
  CHECK(model->tied_names() == std::map<std::string, std::string>{{"lm_head.weight", wte[0]}});
}

TEST_CASE("Backward passes end at the first stage with anything to train", "[patterns]") {
  const std::unique_ptr<Model> model = model_of(4);
  const auto first = [&](const std::set<std::string>& frozen) {
    model->freeze(frozen);
    return first_trained_stage(*model, {1, 2, 1});
  };
  const auto names = [&](const std::vector<std::string>& patterns) {
    std::set<std::string> all;
    for (const std::string& pattern : patterns)
      for (const std::string& name : matching_parameters(*model, pattern)) all.insert(name);
    return all;
  };
  CHECK(first({}) == 0);
  CHECK(first(names({"h", "ln_f", "wte"})) == 0);  // positions
  CHECK(first(names({"h", "ln_f", "wpe"})) == 0);  // the first stage makes rows' gradients
  CHECK(first(names({"h.0", "wpe", "wte"})) == 1);
  CHECK(first(names({"h.[0-1]", "wpe", "wte"})) == 1);  // h.2
  CHECK(first(names({"h.[0-2]", "wpe", "wte"})) == 2);
  CHECK(first(names({"h", "wpe", "wte"})) == 2);  // ln_f
  CHECK(first(names({"*"})) == 2);
  const ParameterCount count = parameter_count(*model);
  CHECK(count.trained == 0);
  CHECK(count.all > 0);
  model->freeze({"wpe.weight"});
  CHECK(parameter_count(*model).trained == count.all - 3 * 4);
}
