// SPDX-License-Identifier: BSD-3-Clause
// Gpt2Stage against what transformers computes (tests/golden/make_gpt2_fixtures.py).
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "core/kernels/gemm/blas.hpp"
#include "models/config_file.hpp"
#include "models/gpt2/gpt2_model.hpp"
#include "support/golden_values.hpp"
#include "support/in_process_pipeline.hpp"

using namespace deltapipe;
using deltapipe::test::golden_settings;
using deltapipe::test::InProcessPipeline;
using deltapipe::test::PipelineShape;
using deltapipe::test::read_all;
using deltapipe::test::read_scalar;
using deltapipe::test::read_text;
using deltapipe::test::relative_difference;
using deltapipe::test::StepData;

namespace {

const std::string kPrefix = "transformer.";
const std::string kFixtures = std::string(DELTAPIPE_FIXTURES) + "/tiny_gpt2";

/// The fixtures' model without dropout, its stored weights loaded.
template <class Real>
InProcessPipeline<Real> load_pipeline(const std::string& model, const std::vector<int>& partition,
                                      const PipelineShape& shape,
                                      const OptimizerSettings& settings = {}) {
  const std::string directory = kFixtures + "/" + model;
  const Gpt2Config config = Gpt2Config::read(read_config_file(directory));
  InProcessPipeline<Real> pipeline(config, partition, shape, settings);
  for (int k = 0; k < pipeline.stage_count(); ++k)
    load_weights(SafetensorsReader::open_directory(directory), gpt2_names(),
                 pipeline.stage(k).parameters());
  return pipeline;
}

StepData read_step(const hdf5::Location& place, std::uint64_t first, std::uint64_t count) {
  StepData data;
  data.tokens = read_all<std::int32_t>(place, "input_ids");
  if (place.exists("targets"))
    data.targets = read_all<std::int32_t>(place, "targets");
  else
    data.targets.assign(data.tokens.size(), 0);
  const std::size_t size = data.tokens.size() / place.open_dataset("input_ids").rows() * count;
  const auto part = [&](std::vector<std::int32_t>& all) {
    all = std::vector<std::int32_t>(all.begin() + first * size / count,
                                    all.begin() + first * size / count + size);
  };
  part(data.tokens);
  part(data.targets);
  return data;
}

StepData with_ids(StepData data, int samples) {
  data.sample_ids.resize(samples);
  std::iota(data.sample_ids.begin(), data.sample_ids.end(), 100);
  return data;
}

constexpr int kSamples = 3, kTokens = 17;  // of golden.h5's batches

template <class Real>
struct Tolerance;
template <>
struct Tolerance<float> {
  static constexpr double logits = 1e-5, loss = 1e-6, gradient = 1e-4, training = 1e-4,
                          parameters = 1e-3;
};
// The golden values themselves are stored in fp32, large ones with 20 bits.
template <>
struct Tolerance<double> {
  static constexpr double logits = 2e-6, loss = 1e-12, gradient = 2e-6, training = 1e-9,
                          parameters = 2e-6;
};

/// A parameter's values; of c_attn.bias without the key's third: softmax does not feel it, its
/// gradient is rounding noise, which AdamW blows up.
template <class T>
std::vector<T> without_key_bias(const std::string& name, std::vector<T> values) {
  if (name.find("c_attn.bias") == std::string::npos) return values;
  const auto third = static_cast<std::ptrdiff_t>(values.size() / 3);
  values.erase(values.begin() + third, values.begin() + 2 * third);
  return values;
}

}  // namespace

TEMPLATE_TEST_CASE("A GPT-2's logits, loss and gradients are those of transformers",
                   "[models][golden]", float, double) {
  use_single_threaded_blas();
  const hdf5::File golden = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const auto stages = GENERATE(std::vector<int>{4}, std::vector<int>{1, 2, 1});
  const int samples = GENERATE(1, 2, 3);
  PipelineShape shape{samples, kTokens, (kSamples + samples - 1) / samples};
  shape.recompute = samples == 2;
  auto pipeline = load_pipeline<TestType>("model", stages, shape);
  const StepData data = with_ids(read_step(golden, 0, kSamples), kSamples);
  const double loss = pipeline.gradients(data, 0);

  const double truth = read_scalar(golden, "loss");
  CHECK(std::abs(loss - truth) < Tolerance<TestType>::loss * truth);
  std::vector<TestType> logits;
  for (int m = 0, left = kSamples; left > 0; ++m, left -= samples) {
    const auto part = pipeline.logits(m, std::min(samples, left) * kTokens);
    logits.insert(logits.end(), part.begin(), part.end());
  }
  CHECK(relative_difference(logits, read_all<double>(golden, "logits")) <
        Tolerance<TestType>::logits);

  const hdf5::Group gradients = golden.open_group("gradients");
  const auto ours = pipeline.parameter_gradients();
  CHECK(ours.size() == gradients.names().size());
  for (const auto& [name, values] : ours) {
    INFO(name);
    CHECK(relative_difference(values, read_all<double>(gradients, gpt2_names().saved(name))) <
          Tolerance<TestType>::gradient);
  }
}

TEST_CASE("With products in bf16, logits, loss and gradients are close to those of transformers",
          "[models][golden][bf16]") {
  use_single_threaded_blas();
  const hdf5::File golden = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  PipelineShape shape{kSamples, kTokens, 1};
  shape.products = ProductPrecision::bf16;
  auto pipeline = load_pipeline<float>("model", {4}, shape);
  const StepData data = with_ids(read_step(golden, 0, kSamples), kSamples);
  const double loss = pipeline.gradients(data, 0);

  // A value in bf16 is off by a factor of up to 1 + 2^-9.
  constexpr double kRounding = 1.0 / 512;
  const double truth = read_scalar(golden, "loss");
  CHECK(std::abs(loss - truth) < kRounding * truth);
  CHECK(loss != truth);
  const double logits = relative_difference(pipeline.logits(0, kSamples * kTokens),
                                            read_all<double>(golden, "logits"));
  CHECK(logits < 4 * kRounding);
  CHECK(logits > kRounding / 100);
  const hdf5::Group gradients = golden.open_group("gradients");
  for (const auto& [name, values] : pipeline.parameter_gradients()) {
    INFO(name);
    CHECK(relative_difference(
              without_key_bias(name, values),
              without_key_bias(name, read_all<double>(gradients, gpt2_names().saved(name)))) <
          10 * kRounding);
  }
}

TEMPLATE_TEST_CASE("Ten AdamW steps are those of PyTorch", "[models][golden]", float, double) {
  const hdf5::File golden = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const hdf5::Group training = golden.open_group("training");
  const OptimizerSettings settings = golden_settings(training);
  const auto rates = read_all<double>(training, "learning_rates");
  const auto losses = read_all<double>(training, "losses");
  const auto norms = read_all<double>(training, "gradient_norms");
  const double tolerance = Tolerance<TestType>::training;

  const auto stages = GENERATE(std::vector<int>{4}, std::vector<int>{2, 2});
  auto pipeline = load_pipeline<TestType>("model", stages, {kSamples, kTokens, 1}, settings);
  for (std::size_t step = 0; step < losses.size(); ++step) {
    INFO("step " << step);
    const double rate = learning_rate_at(settings, step, losses.size());
    CHECK(rate == Approx(rates[step]).epsilon(1e-12));
    const StepData data = with_ids(read_step(training, step, 1), kSamples);
    const auto result = pipeline.train(data, step, rate);
    CHECK(std::abs(result.loss - losses[step]) < tolerance * losses[step]);
    CHECK(std::abs(result.gradient_norm - norms[step]) < 10 * tolerance * norms[step]);
  }

  const auto parameters = pipeline.parameters();
  const hdf5::Group last = training.open_group("final");
  for (const std::string& name : last.names()) {
    INFO(name);
    const auto values = without_key_bias(name, parameters.at(name.substr(kPrefix.size())));
    const auto truth = without_key_bias(name, read_all<double>(last, name));
    CHECK(relative_difference(values, truth) < Tolerance<TestType>::parameters);
  }
  const auto names = nlohmann::json::parse(read_text(training, "names"));
  const auto squares = read_all<double>(training, "sums_of_squares");
  REQUIRE(names.size() == parameters.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string name = names[i].get<std::string>();
    INFO(name);
    double square = 0;
    for (const TestType value : without_key_bias(name, parameters.at(name.substr(kPrefix.size()))))
      square += static_cast<double>(value) * value;
    CHECK(std::abs(square - squares[i]) < 10 * tolerance * squares[i]);
  }
}

TEST_CASE("With products in bf16, ten AdamW steps stay close to those of PyTorch",
          "[models][golden][bf16]") {
  const hdf5::File golden = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const hdf5::Group training = golden.open_group("training");
  const OptimizerSettings settings = golden_settings(training);
  const auto losses = read_all<double>(training, "losses");
  PipelineShape shape{kSamples, kTokens, 1};
  shape.products = ProductPrecision::bf16;
  auto pipeline = load_pipeline<float>("model", {2, 2}, shape, settings);
  double change = 0;  // of the loss by training, beside which errors are seen
  for (const double loss : losses) change = std::max(change, std::abs(loss - losses.front()));
  for (std::size_t step = 0; step < losses.size(); ++step) {
    INFO("step " << step << " of a training that changes the loss by " << change);
    const StepData data = with_ids(read_step(training, step, 1), kSamples);
    const auto result = pipeline.train(data, step, learning_rate_at(settings, step, losses.size()));
    CHECK(std::abs(result.loss - losses[step]) < change / 50);
  }
}

TEMPLATE_TEST_CASE("Ten AdamW steps with frozen parameters are those of PyTorch",
                   "[models][golden][frozen]", float, double) {
  const hdf5::File golden = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const hdf5::Group training = golden.open_group("training");
  const OptimizerSettings settings = golden_settings(training);
  const double tolerance = Tolerance<TestType>::training;
  const std::string name = GENERATE("prefix", "scattered");
  const auto stages = GENERATE(std::vector<int>{4}, std::vector<int>{2, 2}, std::vector<int>{1, 3});
  CAPTURE(name, stages);
  const hdf5::Group run = golden.open_group("frozen").open_group(name);
  PipelineShape shape{kSamples, kTokens, 1};
  for (const auto& frozen : nlohmann::json::parse(run.read_string_attribute("frozen")))
    shape.frozen.insert(frozen.get<std::string>());
  auto pipeline = load_pipeline<TestType>("model", stages, shape, settings);
  const auto start = pipeline.parameters();
  const auto losses = read_all<double>(run, "losses");
  const auto norms = read_all<double>(run, "gradient_norms");
  for (std::size_t step = 0; step < losses.size(); ++step) {
    INFO("step " << step);
    const StepData data = with_ids(read_step(training, step, 1), kSamples);
    const auto result = pipeline.train(data, step, learning_rate_at(settings, step, losses.size()));
    CHECK(std::abs(result.loss - losses[step]) < tolerance * losses[step]);
    CHECK(std::abs(result.gradient_norm - norms[step]) < 10 * tolerance * norms[step]);
  }
  const auto parameters = pipeline.parameters();
  const auto names = nlohmann::json::parse(read_text(run, "names"));
  const auto squares = read_all<double>(run, "sums_of_squares");
  REQUIRE(names.size() == parameters.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string parameter = names[i].template get<std::string>().substr(kPrefix.size());
    INFO(parameter);
    const auto& values = parameters.at(parameter);
    CHECK((values == start.at(parameter)) == shape.frozen.contains(parameter));
    double square = 0;
    for (const TestType value : without_key_bias(parameter, values))
      square += static_cast<double>(value) * value;
    CHECK(std::abs(square - squares[i]) < 10 * tolerance * squares[i]);
  }
}

TEST_CASE("Half and sharded, bfloat16 and unprefixed weights are read", "[models][golden]") {
  const hdf5::File golden = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  for (const std::string variant : {"f16_sharded", "bf16"}) {
    INFO(variant);
    const hdf5::Group group = golden.open_group(variant);
    auto pipeline = load_pipeline<double>("model_" + variant, {1, 1}, {2, 9, 1});
    const StepData data = with_ids(read_step(group, 0, 2), 2);
    pipeline.evaluate(data);
    CHECK(relative_difference(pipeline.logits(0, 18), read_all<double>(group, "logits")) < 2e-6);
  }
}

TEST_CASE("Weight decay applies to what PyTorch's run decayed", "[models][golden]") {
  const hdf5::File golden = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const std::string text = golden.open_group("training").read_string_attribute("decayed");
  std::set<std::string> decayed;
  for (const auto& name : nlohmann::json::parse(text)) decayed.insert(name.get<std::string>());
  const Gpt2Config config = Gpt2Config::read(read_config_file(kFixtures + "/model"));
  std::set<std::string> ours;
  Gpt2Stage<float> stage(config, {0, 4, true, true}, false);
  for (const ParameterInfo& p : stage.parameters().info())
    if (p.decay) ours.insert(gpt2_names().saved(p.name));
  CHECK(ours == decayed);
}
