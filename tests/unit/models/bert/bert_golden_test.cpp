// SPDX-License-Identifier: BSD-3-Clause
// BertStage against what transformers computes
// (tests/golden/make_bert_fixtures.py).
#include <catch2/catch.hpp>

#include "models/bert/bert_model.hpp"
#include "support/golden_text_classifier.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

const std::string kFixtures = std::string(DELTAPIPE_FIXTURES) + "/tiny_bert";

template <class Real>
GoldenTextClassifier<Real> make(const std::string& directory, bool split, bool recompute,
                                const OptimizerSettings& settings) {
  const auto config = read_classifier_config<BertConfig>(directory);
  return {std::make_unique<BertStage<Real>>(config, StagePart{0, config.layers, true, true}),
          bert_names(),
          directory,
          config.vocabulary,
          static_cast<int>(config.classes.size()),
          split,
          recompute,
          settings};
}

}  // namespace

TEMPLATE_TEST_CASE("A BERT's probabilities, loss and gradients are those of transformers",
                   "[models][bert][golden]", float, double) {
  check_text_gradients(kFixtures, GENERATE("model", "relu"), make<TestType>);
}

TEMPLATE_TEST_CASE("Ten AdamW steps of a BERT are those of PyTorch", "[models][bert][golden]",
                   float, double) {
  check_text_training(kFixtures, GENERATE("model", "relu"), make<TestType>);
}

TEST_CASE("The names of a BERT's classes come from config.json", "[models][bert]") {
  CHECK(read_classifier_config<BertConfig>(kFixtures + "/model").classes ==
        std::vector<std::string>{"red", "green", "blue", "grey", "black"});
}
