// SPDX-License-Identifier: BSD-3-Clause
// What must not change a GPT-2's results: the number of stages, recomputation, the order of
// schedules. And what the golden values do not reach: untied embeddings, dropout's gradient.
#include <catch2/catch.hpp>

#include "core/kernels/gemm/blas.hpp"
#include "models/gpt2/gpt2_stage.hpp"
#include "support/finite_differences.hpp"
#include "support/in_process_pipeline.hpp"
#include "support/text_batch.hpp"

using namespace deltapipe;
using deltapipe::test::InProcessPipeline;
using deltapipe::test::PipelineShape;
using deltapipe::test::random_step;
using deltapipe::test::StepData;

namespace {

Gpt2Config small_config(double dropout, bool tied) {
  Gpt2Config config;
  config.n_layer = 4;
  config.n_head = 3;
  config.n_embd = 21;
  config.n_inner = 50;
  config.n_positions = 16;
  config.vocabulary_size = 37;
  config.initializer_range = 0.2;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = dropout;
  config.tie_word_embeddings = tied;
  return config;
}

struct Run {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> parameters;
};

Run run(const Gpt2Config& config, const std::vector<int>& partition, const PipelineShape& shape) {
  OptimizerSettings settings;
  settings.learning_rate = 1e-2;
  settings.clip_norm = 0.5;
  InProcessPipeline<float> pipeline(config, partition, shape, settings);
  for (int k = 0; k < pipeline.stage_count(); ++k)
    initialise_weights(config, shape.seed, pipeline.stage(k).parameters());
  Run result;
  constexpr int kSamples = 5;
  for (std::uint64_t step = 0; step < 3; ++step) {
    const auto made = pipeline.train(
        random_step(kSamples, shape.tokens, config.vocabulary_size, step), step, 1e-2);
    result.losses.push_back(made.loss);
    result.norms.push_back(made.gradient_norm);
  }
  result.parameters = pipeline.parameters();
  return result;
}

bool same_bits(const Run& a, const Run& b) {
  return a.losses == b.losses && a.norms == b.norms && a.parameters == b.parameters;
}

/// Micro-batches of 5, 3 (the last one short) or 2 samples.
PipelineShape shape_of(int micro_batches, bool recompute, const char* schedule,
                       ProductPrecision products = ProductPrecision::fp32) {
  PipelineShape shape{micro_batches == 1   ? 5
                      : micro_batches == 2 ? 3
                                           : 2,
                      13, micro_batches, recompute, schedule};
  shape.products = products;
  return shape;
}

}  // namespace

TEST_CASE("Stages, recomputation and schedules change no bit of a run", "[models][partition]") {
  use_single_threaded_blas();
  const double dropout = GENERATE(0.0, 0.1);
  const bool tied = GENERATE(true, false);
  const int micro_batches = GENERATE(1, 2, 3);
  const auto products = GENERATE(ProductPrecision::fp32, ProductPrecision::bf16);
  const Gpt2Config config = small_config(dropout, tied);
  const Run reference = run(config, {4}, shape_of(micro_batches, false, "gpipe", products));
  for (const double loss : reference.losses) REQUIRE(std::isfinite(loss));
  CHECK(reference.losses.back() != reference.losses.front());
  for (const std::vector<int>& partition : {std::vector<int>{4}, {3, 1}, {1, 2, 1}, {1, 1, 1, 1}})
    for (const Schedule& schedule : schedules())
      for (const bool recompute : {false, true}) {
        INFO(partition.size() << " stages, " << micro_batches << " micro-batches, recompute "
                              << recompute << ", " << schedule.name << ", bf16 "
                              << (products == ProductPrecision::bf16));
        CHECK(same_bits(
            reference,
            run(config, partition, shape_of(micro_batches, recompute, schedule.name, products))));
      }
}

TEST_CASE("Dropout acts in training and not in evaluation", "[models][dropout]") {
  const Gpt2Config with = small_config(0.3, true), without = small_config(0, true);
  const StepData data = random_step(2, 9, with.vocabulary_size, 5);
  double losses[2][2];
  for (const bool drop : {false, true}) {
    InProcessPipeline<double> pipeline(drop ? with : without, {2, 2}, {2, 9, 1}, {});
    for (int k = 0; k < 2; ++k) initialise_weights(with, 3, pipeline.stage(k).parameters());
    losses[drop][0] = pipeline.evaluate(data);
    losses[drop][1] = pipeline.gradients(data, 5);
    CHECK((pipeline.gradients(data, 6) != losses[drop][1]) == drop);  // another step, another mask
  }
  CHECK(losses[0][0] == losses[0][1]);
  CHECK(losses[1][0] == losses[0][0]);
  CHECK(losses[1][1] != losses[0][1]);
}

TEST_CASE("Micro-batches change a run by rounding only, dropout included", "[models][partition]") {
  const Gpt2Config config = small_config(GENERATE(0.0, 0.1), GENERATE(true, false));
  const Run one = run(config, {4}, shape_of(1, false, "gpipe"));
  for (const int micro_batches : {2, 3}) {
    const Run several = run(config, {4}, shape_of(micro_batches, false, "gpipe"));
    for (std::size_t step = 0; step < one.losses.size(); ++step)
      CHECK(several.losses[step] == Approx(one.losses[step]).epsilon(2e-5));
    for (std::size_t step = 0; step < one.norms.size(); ++step)
      CHECK(several.norms[step] == Approx(one.norms[step]).epsilon(1e-3));
  }
}

TEST_CASE("Logits in several blocks of rows have the loss and gradients of one block",
          "[models][logits]") {
  Gpt2Config config = small_config(0, true);
  config.n_layer = 1;
  config.n_positions = 70;
  config.vocabulary_size = 120001;  // 350 rows are three blocks, 70 rows one
  const StepData data = random_step(5, 70, config.vocabulary_size, 5);
  const auto gradients_of = [&](const PipelineShape& shape, double& loss) {
    InProcessPipeline<double> pipeline(config, {1}, shape, {});
    initialise_weights(config, 3, pipeline.stage(0).parameters());
    loss = pipeline.gradients(data, 5);
    return pipeline.parameter_gradients();
  };
  double loss_in_blocks = 0, loss = 0;
  const auto in_blocks = gradients_of({5, 70, 1}, loss_in_blocks);
  const auto truth = gradients_of({1, 70, 5}, loss);
  CHECK(loss_in_blocks == Approx(loss).epsilon(1e-12));
  REQUIRE(in_blocks.size() == truth.size());
  for (const auto& [name, values] : truth) {
    INFO(name);
    CHECK(test::relative_difference(in_blocks.at(name), values, 1e-3) < 1e-10);
  }
}

TEST_CASE("Every parameter's gradient is the loss's slope, dropout and untied matrices included",
          "[models][gradient]") {
  use_single_threaded_blas();
  const bool tied = GENERATE(true, false);
  const double dropout = GENERATE(0.0, 0.3);
  const Gpt2Config config = small_config(dropout, tied);
  const std::vector<int> partition = tied ? std::vector<int>{2, 1, 1} : std::vector<int>{4};
  InProcessPipeline<double> pipeline(config, partition, {2, 9, 2, true}, {});
  for (int k = 0; k < pipeline.stage_count(); ++k)
    initialise_weights(config, 3, pipeline.stage(k).parameters());
  const StepData data = random_step(3, 9, config.vocabulary_size, 5);
  pipeline.gradients(data, 5);
  const auto gradients = pipeline.parameter_gradients();
  const auto start = pipeline.parameters();
  CHECK(gradients.size() == (tied ? 52u : 53u));

  std::uint64_t state = 1;
  for (const auto& [name, gradient] : gradients) {
    INFO(name);
    // Along a random direction every element takes part.
    std::vector<double> direction(gradient.size());
    double expected = 0, size = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      state = mix_bits(state + 0x9e3779b97f4a7c15ull);
      direction[i] = static_cast<double>(state >> 11) / (1ull << 53) - 0.5;
      expected += direction[i] * gradient[i];
      size += std::abs(direction[i] * gradient[i]);
    }
    const double h = 1e-5;
    const auto loss_at = [&, &name = name](double distance) {
      std::vector<double> moved = start.at(name);
      for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += distance * direction[i];
      pipeline.set_parameter(name, moved);
      return pipeline.gradients(data, 5);
    };
    const double slope = (loss_at(h) - loss_at(-h)) / (2 * h);
    pipeline.set_parameter(name, start.at(name));
    CHECK(std::abs(slope - expected) < 1e-7 * size + 1e-9);
  }
}

TEST_CASE("Buckets of gradients are announced once each, last block first", "[models][stage]") {
  const Gpt2Config config = small_config(0, true);
  Gpt2Stage<float> stage(config, {0, 4, true, true}, true);
  stage.reserve({2, 3, 1, 1, 6, true, false});
  initialise_weights(config, 1, stage.parameters());
  const auto tokens = deltapipe::test::to_device(std::vector<std::int32_t>{1, 2, 3, 4, 5, 6});
  const auto ids = deltapipe::test::to_device(std::vector<std::uint64_t>{1, 2});
  const MicroBatch batch = test::text_batch(2, 3, ids, tokens, tokens);
  const ExecSpace exec;
  stage.forward(exec, batch, 0, true, false);
  std::vector<int> order;
  stage.backward(exec, batch, 0, false, [&](int bucket) { order.push_back(bucket); });
  // Bucket 0 holds the positions, 1 ... 4 the blocks, 5 the final norm, 6 the token embedding.
  CHECK(order == std::vector<int>{5, 4, 3, 2, 1, 0});
  const ParameterInfo& table = stage.parameters().info()[stage.token_embedding()->wte()];
  CHECK(table.name == "wte.weight");
  CHECK(table.bucket == 6);
  std::size_t end = 0;
  for (const BucketRange& range : stage.parameters().buckets()) {
    CHECK(range.begin == end);
    end = range.end;
  }
  CHECK(end == stage.parameters().gradient_size());
}

TEST_CASE("A micro-batch larger than what was reserved is refused", "[models][stage]") {
  const Gpt2Config config = small_config(0, true);
  Gpt2Stage<float> stage(config, {0, 4, true, true}, true);
  CHECK_THROWS(stage.reserve({1, 17, 1, 1, 17, true, false}));  // 16 positions
  stage.reserve({1, 3, 1, 1, 3, true, false});
  MicroBatch batch;
  batch.samples = 2;
  batch.tokens = 3;
  CHECK_THROWS(stage.forward(ExecSpace(), batch, 0, true, false));
}
