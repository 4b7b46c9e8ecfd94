// SPDX-License-Identifier: BSD-3-Clause
// A Gpt2Stage with classes against what transformers computes
// (tests/golden/make_gpt2_classifier_fixtures.py).
#include <catch2/catch.hpp>

#include "comm/pipeline/token_index.hpp"
#include "core/kernels/gemm/blas.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"
#include "models/gpt2/gpt2_model.hpp"
#include "support/golden_classifier.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

constexpr int kSamples = 4, kTokens = 17;
const std::string kFixtures = std::string(DELTAPIPE_FIXTURES) + "/tiny_gpt2_classifier";

Gpt2Config read_config(const std::string& name) {
  const ConfigFile file = read_config_file(kFixtures + "/" + name);
  Gpt2Config config = Gpt2Config::read(file);
  config.classes = classes_of_classifier(file);
  return config;
}

StageCapacity capacity_of(const Gpt2Config& config, bool split, bool recompute) {
  StageCapacity capacity;
  capacity.samples = kSamples;
  capacity.tokens = kTokens;
  capacity.embedding_rows = std::min(config.vocabulary_size, kSamples * kTokens);
  capacity.splits_backward = split;
  capacity.recompute = recompute;
  return capacity;
}

template <class Real>
class Classifier final : public GoldenClassifier<Real> {
 public:
  Classifier(const std::string& name, const Gpt2Config& config, bool split, bool recompute,
             const OptimizerSettings& settings = {})
      : GoldenClassifier<Real>(
            std::make_unique<Gpt2Stage<Real>>(config, StagePart{0, config.n_layer, true, true}),
            gpt2_classifier_names(), kFixtures + "/" + name, capacity_of(config, split, recompute),
            static_cast<int>(config.classes.size()), settings),
        index_(config.vocabulary_size, kSamples * kTokens, 1) {}

 private:
  void set_inputs(const hdf5::Location& golden, std::size_t step, MicroBatch& batch) override {
    constexpr std::size_t kRows = kSamples * kTokens;
    ids_ = batch_of<std::int32_t>(golden, "input_ids", step, kRows);
    tokens_ = to_device(ids_);
    lengths_ = to_device(batch_of<std::int32_t>(golden, "lengths", step, kSamples));
    batch.length_B = lengths_;
    batch.fields.set(Field::tokens, tokens_);
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
  Vector<std::int32_t> tokens_, lengths_;
};

}  // namespace

TEMPLATE_TEST_CASE(
    "A GPT-2 classifier's probabilities, loss and gradients are those of transformers",
    "[models][gpt2][golden]", float, double) {
  use_single_threaded_blas();
  const std::string name = "model";
  const bool split = GENERATE(false, true), recompute = GENERATE(false, true);
  if (split && recompute) return;
  CAPTURE(name, split, recompute);
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const Gpt2Config config = read_config(name);
  Classifier<TestType> classifier(name, config, split, recompute);
  check_gradients(classifier, file.open_group(name), static_cast<int>(config.classes.size()));
}

TEMPLATE_TEST_CASE("Ten AdamW steps of a GPT-2 classifier are those of PyTorch",
                   "[models][gpt2][golden]", float, double) {
  const std::string name = "model";
  CAPTURE(name);
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const hdf5::Group golden = file.open_group(name);
  Classifier<TestType> classifier(name, read_config(name), false, false,
                                  golden_settings(golden.open_group("training")));
  check_training(classifier, golden, "training");
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
