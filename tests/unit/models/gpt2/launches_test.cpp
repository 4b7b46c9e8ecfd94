// SPDX-License-Identifier: BSD-3-Clause
// How many kernels and products a training step launches where a device computes: a number for each
// block, whatever the heads and the samples; and that what is computed so is the same.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>

#include "core/kernels/gemm/blas.hpp"
#include "models/gpt2/gpt2_stage.hpp"
#include "support/finite_differences.hpp"
#include "support/in_process_pipeline.hpp"
#include "support/kernel_labels.hpp"

using namespace deltapipe;
using deltapipe::test::InProcessPipeline;
using deltapipe::test::PipelineShape;
using deltapipe::test::random_step;

namespace {

Gpt2Config small_config(int blocks, int heads, double dropout = 0) {
  Gpt2Config config;
  config.n_layer = blocks;
  config.n_head = heads;
  config.n_embd = 24;
  config.n_inner = 50;
  config.n_positions = 300;
  config.vocabulary_size = 37;
  config.initializer_range = 0.2;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = dropout;
  return config;
}

/// Kernels of deltapipe's, its products among them where these are seen as such.
struct Launches final : test::LaunchObserver {
  void kernel(const char* label, std::uint32_t) override {
    if (std::string(label).starts_with("deltapipe::")) ++of[label];
  }
  void fence(const char*, std::uint32_t) override {}
  int all() const {
    int sum = 0;
    for (const auto& [label, count] : of) sum += count;
    return sum;
  }
  std::map<std::string, int> of;
};

#if defined(KOKKOS_ENABLE_CUDA)
constexpr bool kProductsAreSeen = true;
#else
constexpr bool kProductsAreSeen = kTeamExecution;
#endif

struct Case {
  int blocks, heads, samples, tokens, micro_batches;
  ProductPrecision products = ProductPrecision::fp32;
};

/// Launches of a training step, computed as on a device.
Launches launches_of(const Case& c) {
  const Gpt2Config config = small_config(c.blocks, c.heads);
  PipelineShape shape{c.samples, c.tokens, c.micro_batches};
  shape.products = c.products;
  shape.as_on_device = true;
  InProcessPipeline<float> pipeline(config, {c.blocks}, shape, {});
  initialise_weights(config, 3, pipeline.stage(0).parameters());
  const auto data = random_step(c.samples * c.micro_batches, c.tokens, config.vocabulary_size, 4);
  Launches launches;
  test::observe_launches(&launches);
  pipeline.train(data, 0, 1e-3);
  test::observe_launches(nullptr);
  return launches;
}

/// Launches that one block adds to a step, counted by hand; `products` of them as kernels.
int launches_of_block(const Case& c) {
  const int query_blocks = (c.tokens + 127) / 128;
  const int column_sum = c.samples * c.tokens > 256 ? 2 : 1;
  const int norms = 2 + 2, gelus = 1 + 1, biases = 4, softmaxes = 2 * query_blocks, addresses = 2;
  const int sums = (4 + 2) * column_sum;  // of biases and of norms' parameters
  const int rounded = c.products == ProductPrecision::bf16 ? 9 : 0;
  const int products = kProductsAreSeen ? 3 * 4 + (2 + 5) * query_blocks : 0;
  const int passes = norms + gelus + biases + softmaxes + addresses + sums + rounded + products;
  return c.micro_batches * passes + 12 * 2;  // tensors: squared norm and update of each
}

}  // namespace

TEST_CASE("A step's launches are a number for each block, whatever the heads and samples",
          "[models][launches]") {
  use_single_threaded_blas();
  std::vector<ProductPrecision> precisions = {ProductPrecision::fp32};
  if (has_fast_bf16_gemm()) precisions.push_back(ProductPrecision::bf16);
  for (const ProductPrecision products : precisions)
    for (const int tokens : {7, 129, 300})
      for (const int micro_batches : {1, 2}) {
        int without_blocks = -1;
        for (const int heads : {2, 3, 12})
          for (const int samples : {2, 5}) {
            const Case two{2, heads, samples, tokens, micro_batches, products};
            Case three = two;
            three.blocks = 3;
            INFO(tokens << " tokens, " << micro_batches << " micro-batches, " << heads << " heads, "
                        << samples << " samples, bf16 " << (products == ProductPrecision::bf16));
            const int launches = launches_of(two).all();
            CHECK(launches_of(three).all() - launches == launches_of_block(two));
            // One more where more rows than a team sums are of the final norm.
            const int column_sum = samples * tokens > 256 ? micro_batches : 0;
            const int rest = launches - 2 * launches_of_block(two) - column_sum;
            if (without_blocks < 0) without_blocks = rest;
            CHECK(rest == without_blocks);
          }
      }
}

TEST_CASE("What is computed as on a device is what a host computes", "[models][launches]") {
  use_single_threaded_blas();
  const Gpt2Config config = small_config(3, 3, GENERATE(0.0, 0.2));
  const int tokens = GENERATE(5, 135);
  const auto data = random_step(5, tokens, config.vocabulary_size, 4);
  const auto gradients = [&](const std::vector<int>& partition, PipelineShape shape) {
    InProcessPipeline<double> pipeline(config, partition, shape, {});
    for (int k = 0; k < pipeline.stage_count(); ++k)
      initialise_weights(config, 3, pipeline.stage(k).parameters());
    const double loss = pipeline.gradients(data, 4);
    CHECK(pipeline.evaluate(data) == Approx(loss).epsilon(0.3));
    return std::pair(loss, pipeline.parameter_gradients());
  };
  PipelineShape shape{3, tokens, 2};
  shape.as_on_device = false;
  const auto [loss, expected] = gradients({3}, shape);
  for (const bool recompute : {false, true})
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      CAPTURE(recompute, schedule, tokens);
      shape.as_on_device = true;
      shape.recompute = recompute;
      shape.schedule = schedule;
      const auto [device_loss, made] = gradients({1, 2}, shape);
      CHECK(device_loss == Approx(loss).epsilon(1e-12));
      for (const auto& [name, values] : made) {
        if (name.find("c_attn.bias") != std::string::npos) continue;  // the key's is rounding noise
        INFO(name);
        CHECK(test::relative_difference(values, expected.at(name), 1e-6) < 1e-6);
      }
    }
}

TEST_CASE("A stage that computes as on a device counts what it takes for that",
          "[models][launches]") {
  Gpt2Stage<float> stage(small_config(2, 3), {0, 2, true, true});
  StageCapacity capacity;
  capacity.samples = 4;
  capacity.tokens = 300;
  stage.compute_as_on_device(false);
  const std::uint64_t on_host = stage.memory(capacity).bytes(MemoryUse::workspace);
  stage.compute_as_on_device(true);
  const std::uint64_t on_device = stage.memory(capacity).bytes(MemoryUse::workspace);
  const std::uint64_t scores = 4u * 3 * 128 * 300, addresses = 11u * 3 * 4 * 3;
  const std::uint64_t sums = 2u * 5 * 72;  // of five parts of 1200 rows, the widest of 3C columns
  const std::uint64_t of_host =
      attention_workspace({4, 300, 3, 8}, AttentionGrouping::of_host({4, 300, 3, 8}));
  const std::uint64_t tables = kHostExecution || needs_attention_addresses({128, 3, 4}) ? 8 : 0;
  CHECK(on_device - on_host == 4 * (2 * scores - 2 * of_host + sums) + tables * addresses);
}
