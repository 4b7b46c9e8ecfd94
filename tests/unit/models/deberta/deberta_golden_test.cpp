// SPDX-License-Identifier: BSD-3-Clause
// DebertaStage against what transformers computes
// (tests/golden/make_deberta_fixtures.py).
#include <catch2/catch.hpp>

#include "models/deberta/deberta_model.hpp"
#include "support/golden_text_classifier.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

const std::string kFixtures = std::string(DELTAPIPE_FIXTURES) + "/tiny_deberta";

template <class Real, bool kTrainsRelative = false>
GoldenTextClassifier<Real> make(const std::string& directory, bool split, bool recompute,
                                const OptimizerSettings& settings) {
  auto config = read_classifier_config<DebertaConfig>(directory);
  config.trains_relative = kTrainsRelative;
  return {std::make_unique<DebertaStage<Real>>(config, StagePart{0, config.layers, true, true}),
          deberta_names(),
          directory,
          config.vocabulary,
          static_cast<int>(config.classes.size()),
          split,
          recompute,
          settings};
}

}  // namespace

TEMPLATE_TEST_CASE("A DeBERTa's probabilities, loss and gradients are those of transformers",
                   "[models][deberta][golden]", float, double) {
  check_text_gradients(kFixtures, GENERATE("v3", "v2", "separate", "c2p", "p2c"), make<TestType>);
}

TEMPLATE_TEST_CASE("Ten AdamW steps of a DeBERTa are those of PyTorch", "[models][deberta][golden]",
                   float, double) {
  check_text_training(kFixtures, GENERATE("v3", "v2", "separate", "c2p", "p2c"), make<TestType>);
}

TEMPLATE_TEST_CASE("Gradients of trained relative embeddings are those of transformers",
                   "[models][deberta][golden]", float, double) {
  check_text_gradients(kFixtures, GENERATE("v3", "v2", "separate", "c2p", "p2c"),
                       make<TestType, true>, "trained_");
}

TEMPLATE_TEST_CASE("Ten AdamW steps of relative embeddings are those of PyTorch",
                   "[models][deberta][golden]", float, double) {
  check_text_training(kFixtures, GENERATE("v3", "v2", "separate", "c2p", "p2c"),
                      make<TestType, true>, "trained_");
}

TEST_CASE("Distances are in the buckets of transformers", "[models][deberta][golden]") {
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const hdf5::Group golden = file.open_group("buckets");
  const auto [buckets, longest] =
      GENERATE(std::pair(256, 512), std::pair(4, 16), std::pair(6, 20), std::pair(7, 33),
               std::pair(2, 9), std::pair(128, 512), std::pair(256, 256), std::pair(-1, 24));
  const RelativeBuckets settings{buckets, longest};
  CAPTURE(buckets, longest);
  const auto rows = read_all<std::int32_t>(
      golden, ("row_" + std::to_string(buckets) + "_" + std::to_string(longest)).c_str());
  const int most = static_cast<int>(rows.size()) / 2;
  for (int i = 0; i < static_cast<int>(rows.size()); ++i)
    if (settings.row(i - most) != rows[i]) {
      CAPTURE(i - most);
      CHECK(settings.row(i - most) == rows[i]);
      break;
    }
}
