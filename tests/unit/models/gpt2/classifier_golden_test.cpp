// SPDX-License-Identifier: BSD-3-Clause
// A Gpt2Stage with classes against what transformers computes
// (tests/golden/make_gpt2_classifier_fixtures.py).
#include <catch2/catch.hpp>

#include "models/gpt2/gpt2_model.hpp"
#include "support/golden_text_classifier.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

const std::string kFixtures = std::string(DELTAPIPE_FIXTURES) + "/tiny_gpt2_classifier";

template <class Real>
GoldenTextClassifier<Real> make(const std::string& directory, bool split, bool recompute,
                                const OptimizerSettings& settings) {
  const auto config = read_classifier_config<Gpt2Config>(directory);
  return {std::make_unique<Gpt2Stage<Real>>(config, StagePart{0, config.n_layer, true, true}),
          gpt2_classifier_names(),
          directory,
          config.vocabulary_size,
          static_cast<int>(config.classes.size()),
          split,
          recompute,
          settings};
}

}  // namespace

TEMPLATE_TEST_CASE(
    "A GPT-2 classifier's probabilities, loss and gradients are those of transformers",
    "[models][gpt2][golden]", float, double) {
  check_text_gradients(kFixtures, "model", make<TestType>);
}

TEMPLATE_TEST_CASE("Ten AdamW steps of a GPT-2 classifier are those of PyTorch",
                   "[models][gpt2][golden]", float, double) {
  check_text_training(kFixtures, "model", make<TestType>);
}

TEST_CASE("A language model becomes a classifier with a new head", "[models][gpt2]") {
  NewModel shape;
  shape.blocks = 2;
  shape.heads = 1;
  shape.channels = 4;
  shape.positions = 5;
  shape.vocabulary = 7;
  const std::unique_ptr<Model> model = create_gpt2(shape);
  CHECK(model->shape().tied);
  CHECK(model->task().targets() == Field::next_tokens);
  model->set_class_names({"no", "yes"});
  CHECK_FALSE(model->shape().tied);
  CHECK(model->task().targets() == Field::label);
  CHECK(model->fresh() == std::set<std::string>{"score.weight"});
  CHECK(model->tied_names().empty());
  CHECK(model->saved_name("score.weight") == "score.weight");
  CHECK(model->saved_name("wte.weight") == "transformer.wte.weight");
  const auto parameters = model->parameters(stage_part({1, 1}, 1));
  CHECK(parameters.back().name == "score.weight");
  CHECK(parameters.back().shape == std::vector<std::uint64_t>{2, 4});
}
