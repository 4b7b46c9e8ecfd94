// SPDX-License-Identifier: BSD-3-Clause
// BertStage against what transformers computes (tests/golden/make_bert_fixtures.py).
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "comm/pipeline/token_index.hpp"
#include "core/kernels/gemm/blas.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "models/bert/bert_model.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"
#include "models/optimizer.hpp"
#include "support/device_values.hpp"
#include "support/golden_values.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

constexpr int kSamples = 4, kTokens = 17;
const std::string kFixtures = std::string(DELTAPIPE_FIXTURES) + "/tiny_bert";

BertConfig read_config(const std::string& name) {
  const ConfigFile file = read_config_file(kFixtures + "/" + name);
  BertConfig config = BertConfig::read(file);
  config.classes = read_class_names(file);
  if (config.classes.empty()) config.classes = {"0", "1"};
  return config;
}

/// The whole model in one stage.
template <class Real>
class Bert {
 public:
  Bert(const std::string& name, bool split, bool recompute, const OptimizerSettings& settings = {})
      : config(read_config(name)),
        stage(config, {0, config.layers, true, true}),
        split_(split),
        index_(config.vocabulary, kSamples * kTokens, 1) {
    StageCapacity capacity;
    capacity.samples = kSamples;
    capacity.tokens = kTokens;
    capacity.embedding_rows = std::min(config.vocabulary, kSamples * kTokens);
    capacity.splits_backward = split;
    capacity.recompute = recompute;
    stage.parameters().allocate(true);
    stage.reserve(capacity);
    load_weights(SafetensorsReader::open_directory(kFixtures + "/" + name), bert_names(),
                 stage.parameters());
    optimizer_ = std::make_unique<Optimizer<Real>>(settings, stage.parameters());
  }

  /// Computes the mean loss of batch `step` and its gradients.
  double gradients(const hdf5::Location& golden, std::size_t step) {
    const auto batch_of = [&](const char* name, std::size_t size) {
      const auto all = read_all<std::int32_t>(golden, name);
      return std::vector<std::int32_t>(
          all.begin() + static_cast<std::ptrdiff_t>(step * size),
          all.begin() + static_cast<std::ptrdiff_t>((step + 1) * size));
    };
    const std::vector<std::int32_t> ids = batch_of("input_ids", kSamples * kTokens);
    const Vector<std::int32_t> tokens = to_device(ids);
    const Vector<std::int32_t> segments = to_device(batch_of("token_type_ids", kSamples * kTokens));
    const Vector<std::int32_t> lengths = to_device(batch_of("lengths", kSamples));
    const Vector<std::int32_t> labels = to_device(batch_of("labels", kSamples));
    const Vector<std::uint64_t> sample_ids = to_device(std::vector<std::uint64_t>{5, 6, 7, 8});
    MicroBatch batch;
    batch.samples = kSamples;
    batch.tokens = kTokens;
    batch.sample_id_B = sample_ids;
    batch.length_B = lengths;
    batch.fields.set(Field::tokens, tokens);
    batch.fields.set(Field::segments, segments);
    batch.fields.set(Field::label, labels);
    batch.loss_scale = 1.0 / kSamples;
    batch.score = RowScore::probabilities;
    stage.forward(exec, batch, 0, false, false);
    probabilities = to_host(stage.scores(0, kSamples * static_cast<int>(config.classes.size())));
    batch.score = RowScore::loss;
    stage.forward(exec, batch, 0, true, false);
    if (split_) {
      stage.backward_inputs(exec, batch, 0, false);
      stage.backward_parameters(exec, batch, 0, false, {});
    } else {
      stage.backward(exec, batch, 0, false, {});
    }
    add_token_gradient(ids);
    const auto losses = to_host(stage.scores(0, kSamples));
    return std::accumulate(losses.begin(), losses.end(), 0.0) / kSamples;
  }

  double train(const hdf5::Location& golden, std::size_t step, const OptimizerSettings& settings,
               double* loss) {
    *loss = gradients(golden, step);
    double square = 0;
    for (const double value : optimizer_->squared_norms(exec)) square += value;
    const double norm = std::sqrt(square);
    optimizer_->update(exec, step, settings.learning_rate,
                       std::min(1.0, settings.clip_norm / (norm + 1e-6)));
    exec.fence();
    return norm;
  }

  /// Values by the names of transformers.
  std::map<std::string, std::vector<Real>> by_saved_name(bool of_gradients) {
    std::map<std::string, std::vector<Real>> all;
    for (std::size_t i = 0; i < stage.parameters().info().size(); ++i) {
      const ParameterInfo& p = stage.parameters().info()[i];
      const int index = static_cast<int>(i);
      const auto values = to_host(of_gradients ? stage.parameters().gradient(index)
                                               : stage.parameters().value(index));
      const std::size_t row = p.size / p.shape[0];
      for (const SavedRows& part : bert_names().tensors(p)) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(part.first * row);
        all[bert_names().saved(part.name)] = {begin,
                                              begin + static_cast<std::ptrdiff_t>(part.rows * row)};
      }
    }
    return all;
  }

  BertConfig config;
  BertStage<Real> stage;
  ExecSpace exec;
  std::vector<Real> probabilities;

 private:
  void add_token_gradient(const std::vector<std::int32_t>& ids) {
    index_.clear();
    index_.add(ids, 0);
    index_.finish(exec);
    TokenEmbedding<Real>& embedding = *stage.token_embedding();
    const MatrixRef<Real> table = stage.parameters().gradient_matrix(embedding.wte());
    Kokkos::deep_copy(exec, table, Real(0));
    add_rows<Real>(
        exec, index_.token_by_last_use_U(),
        embedding.embedding_gradient(exec, index_.first_of_U(), index_.row_of(), index_.size()),
        table);
    exec.fence();
  }

  bool split_;
  TokenIndex index_;
  std::unique_ptr<Optimizer<Real>> optimizer_;
};

std::vector<double> softmax(const std::vector<double>& logits, std::size_t classes) {
  std::vector<double> p;
  for (std::size_t row = 0; row < logits.size(); row += classes) {
    double sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(logits[row + c]);
    for (std::size_t c = 0; c < classes; ++c) p.push_back(std::exp(logits[row + c]) / sum);
  }
  return p;
}

template <class Real>
constexpr double kLoose = std::is_same_v<Real, float> ? 1e-5 : 2e-6;

}  // namespace

TEMPLATE_TEST_CASE("A BERT's probabilities, loss and gradients are those of transformers",
                   "[models][bert][golden]", float, double) {
  use_single_threaded_blas();
  const std::string name = GENERATE("model", "relu");
  const bool split = GENERATE(false, true), recompute = GENERATE(false, true);
  if (split && recompute) return;
  CAPTURE(name, split, recompute);
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const hdf5::Group golden = file.open_group(name);
  Bert<TestType> bert(name, split, recompute);
  const double loss = bert.gradients(golden, 0);
  CHECK(loss == Approx(read_scalar(golden, "loss")).epsilon(kLoose<TestType>));
  CHECK(relative_difference(bert.probabilities, softmax(read_all<double>(golden, "logits"),
                                                        bert.config.classes.size())) <
        kLoose<TestType>);
  const hdf5::Group gradients = golden.open_group("gradients");
  const auto made = bert.by_saved_name(true);
  CHECK(made.size() == gradients.names().size());
  for (const std::string& parameter : gradients.names()) {
    INFO(parameter);
    const auto truth = read_all<double>(gradients, parameter);
    // Softmax does not feel the keys' bias: its gradient is rounding noise.
    if (parameter.ends_with("self.key.bias")) {
      for (const TestType value : made.at(parameter)) CHECK(std::abs(value) < 1e-6);
      continue;
    }
    CHECK(relative_difference(made.at(parameter), truth) < 10 * kLoose<TestType>);
  }
}

TEMPLATE_TEST_CASE("Ten AdamW steps of a BERT are those of PyTorch", "[models][bert][golden]",
                   float, double) {
  const std::string name = GENERATE("model", "relu");
  CAPTURE(name);
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const hdf5::Group golden = file.open_group(name);
  const hdf5::Group training = golden.open_group("training");
  const OptimizerSettings settings = golden_settings(training);
  const auto losses = read_all<double>(training, "losses");
  const auto norms = read_all<double>(training, "gradient_norms");
  Bert<TestType> bert(name, false, false, settings);
  constexpr double tolerance = std::is_same_v<TestType, float> ? 1e-4 : 1e-8;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    INFO("step " << step);
    double loss = 0;
    const double norm = bert.train(golden, step, settings, &loss);
    CHECK(loss == Approx(losses[step]).epsilon(tolerance));
    CHECK(norm == Approx(norms[step]).epsilon(10 * tolerance));
  }
  const auto names = nlohmann::json::parse(read_text(training, "names"));
  const auto squares = read_all<double>(training, "sums_of_squares");
  const auto parameters = bert.by_saved_name(false);
  for (std::size_t i = 0; i < names.size(); ++i) {
    INFO(names[i]);
    double square = 0;
    for (const TestType value : parameters.at(names[i].template get<std::string>()))
      square += static_cast<double>(value) * value;
    CHECK(square == Approx(squares[i]).epsilon(10 * tolerance));
  }
}

TEST_CASE("The names of a BERT's classes come from config.json", "[models][bert]") {
  CHECK(read_config("model").classes ==
        std::vector<std::string>{"red", "green", "blue", "grey", "black"});
}
