// SPDX-License-Identifier: BSD-3-Clause
// BertStage against what transformers computes (tests/golden/make_bert_fixtures.py).
#include <catch2/catch.hpp>

#include "comm/pipeline/token_index.hpp"
#include "core/kernels/gemm/blas.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "models/bert/bert_model.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"
#include "support/golden_classifier.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

constexpr int kSamples = 4, kTokens = 17;
const std::string kFixtures = std::string(DELTAPIPE_FIXTURES) + "/tiny_bert";

BertConfig read_config(const std::string& name) {
  const ConfigFile file = read_config_file(kFixtures + "/" + name);
  BertConfig config = BertConfig::read(file);
  config.classes = classes_of_classifier(file);
  return config;
}

StageCapacity capacity_of(const BertConfig& config, bool split, bool recompute) {
  StageCapacity capacity;
  capacity.samples = kSamples;
  capacity.tokens = kTokens;
  capacity.embedding_rows = std::min(config.vocabulary, kSamples * kTokens);
  capacity.splits_backward = split;
  capacity.recompute = recompute;
  return capacity;
}

template <class Real>
class Bert final : public GoldenClassifier<Real> {
 public:
  Bert(const std::string& name, const BertConfig& config, bool split, bool recompute,
       const OptimizerSettings& settings = {})
      : GoldenClassifier<Real>(
            std::make_unique<BertStage<Real>>(config, StagePart{0, config.layers, true, true}),
            bert_names(), kFixtures + "/" + name, capacity_of(config, split, recompute),
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

TEMPLATE_TEST_CASE("A BERT's probabilities, loss and gradients are those of transformers",
                   "[models][bert][golden]", float, double) {
  use_single_threaded_blas();
  const std::string name = GENERATE("model", "relu");
  const bool split = GENERATE(false, true), recompute = GENERATE(false, true);
  if (split && recompute) return;
  CAPTURE(name, split, recompute);
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const BertConfig config = read_config(name);
  Bert<TestType> bert(name, config, split, recompute);
  check_gradients(bert, file.open_group(name), static_cast<int>(config.classes.size()));
}

TEMPLATE_TEST_CASE("Ten AdamW steps of a BERT are those of PyTorch", "[models][bert][golden]",
                   float, double) {
  const std::string name = GENERATE("model", "relu");
  CAPTURE(name);
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const hdf5::Group golden = file.open_group(name);
  Bert<TestType> bert(name, read_config(name), false, false,
                      golden_settings(golden.open_group("training")));
  check_training(bert, golden, "training");
}

TEST_CASE("The names of a BERT's classes come from config.json", "[models][bert]") {
  CHECK(read_config("model").classes ==
        std::vector<std::string>{"red", "green", "blue", "grey", "black"});
}
