// SPDX-License-Identifier: BSD-3-Clause
// DebertaStage against what transformers computes (tests/golden/make_deberta_fixtures.py).
#include <catch2/catch.hpp>

#include "comm/pipeline/token_index.hpp"
#include "core/kernels/gemm/blas.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"
#include "models/deberta/deberta_model.hpp"
#include "support/golden_classifier.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

constexpr int kSamples = 4, kTokens = 17;
const std::string kFixtures = std::string(DELTAPIPE_FIXTURES) + "/tiny_deberta";

DebertaConfig read_config(const std::string& name) {
  const ConfigFile file = read_config_file(kFixtures + "/" + name);
  DebertaConfig config = DebertaConfig::read(file);
  config.classes = classes_of_classifier(file);
  return config;
}

StageCapacity capacity_of(const DebertaConfig& config, bool split, bool recompute) {
  StageCapacity capacity;
  capacity.samples = kSamples;
  capacity.tokens = kTokens;
  capacity.embedding_rows = std::min(config.vocabulary, kSamples * kTokens);
  capacity.splits_backward = split;
  capacity.recompute = recompute;
  return capacity;
}

template <class Real>
class Deberta final : public GoldenClassifier<Real> {
 public:
  Deberta(const std::string& name, const DebertaConfig& config, bool split, bool recompute,
          const OptimizerSettings& settings = {})
      : GoldenClassifier<Real>(
            std::make_unique<DebertaStage<Real>>(config, StagePart{0, config.layers, true, true}),
            deberta_names(), kFixtures + "/" + name, capacity_of(config, split, recompute),
            static_cast<int>(config.classes.size()), settings),
        index_(config.vocabulary, kSamples * kTokens, 1) {}

 private:
  void set_inputs(const hdf5::Location& golden, std::size_t step, MicroBatch& batch) override {
    constexpr std::size_t kRows = kSamples * kTokens;
    ids_ = batch_of<std::int32_t>(golden, "input_ids", step, kRows);
    tokens_ = to_device(ids_);
    segments_ = to_device(batch_of<std::int32_t>(golden, "token_type_ids", step, kRows));
    lengths_ = to_device(batch_of<std::int32_t>(golden, "lengths", step, kSamples));
    batch.length_B = lengths_;
    batch.fields.set(Field::tokens, tokens_);
    batch.fields.set(Field::segments, segments_);
  }
  /// The gradient of the token table.
  void finish_gradients() override {
    index_.clear();
    index_.add(ids_, 0);
    index_.finish(this->exec());
    TokenEmbedding<Real>& embedding = *this->stage().token_embedding();
    const MatrixRef<Real> table = this->stage().parameters().gradient_matrix(embedding.wte());
    Kokkos::deep_copy(this->exec(), table, Real(0));
    add_rows<Real>(this->exec(), index_.token_by_last_use_U(),
                   embedding.embedding_gradient(this->exec(), index_.first_of_U(), index_.row_of(),
                                                index_.size()),
                   table);
  }

  TokenIndex index_;
  std::vector<std::int32_t> ids_;
  Vector<std::int32_t> tokens_, segments_, lengths_;
};

}  // namespace

TEMPLATE_TEST_CASE("A DeBERTa's probabilities, loss and gradients are those of transformers",
                   "[models][deberta][golden]", float, double) {
  use_single_threaded_blas();
  const std::string name = GENERATE("v3", "v2", "separate", "c2p", "p2c");
  const bool split = GENERATE(false, true), recompute = GENERATE(false, true);
  if (split && recompute) return;
  CAPTURE(name, split, recompute);
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const DebertaConfig config = read_config(name);
  Deberta<TestType> deberta(name, config, split, recompute);
  check_gradients(deberta, file.open_group(name), static_cast<int>(config.classes.size()));
}

TEMPLATE_TEST_CASE("Ten AdamW steps of a DeBERTa are those of PyTorch", "[models][deberta][golden]",
                   float, double) {
  const std::string name = GENERATE("v3", "v2", "separate", "c2p", "p2c");
  CAPTURE(name);
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const hdf5::Group golden = file.open_group(name);
  Deberta<TestType> deberta(name, read_config(name), false, false,
                            golden_settings(golden.open_group("training")));
  check_training(deberta, golden, "training");
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
