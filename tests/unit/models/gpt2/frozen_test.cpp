// SPDX-License-Identifier: BSD-3-Clause
// Frozen parameters: the others train as if all were trained, and nothing is computed or allocated
// for what is frozen.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/kernels/gemm/blas.hpp"
#include "models/gpt2/gpt2_stage.hpp"
#include "models/parameter_patterns.hpp"
#include "support/in_process_pipeline.hpp"
#include "support/kernel_labels.hpp"
#include "support/text_batch.hpp"

using namespace deltapipe;
using deltapipe::test::InProcessPipeline;
using deltapipe::test::PipelineShape;
using deltapipe::test::random_step;
using deltapipe::test::StepData;

namespace {

constexpr int kBlocks = 4, kTokens = 7, kSamples = 5;

Gpt2Config small_config(double dropout, bool tied) {
  Gpt2Config config;
  config.n_layer = kBlocks;
  config.n_head = 3;
  config.n_embd = 21;
  config.n_inner = 50;
  config.n_positions = 9;
  config.vocabulary_size = 37;
  config.initializer_range = 0.2;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = dropout;
  config.tie_word_embeddings = tied;
  return config;
}

std::set<std::string> names_of(const Gpt2Config& config, const std::vector<std::string>& patterns) {
  std::set<std::string> names;
  const Gpt2Stage<float> whole(config, {0, kBlocks, true, true});
  for (const ParameterInfo& p : whole.parameters().info())
    for (const std::string& pattern : patterns)
      if (matches_parameter(pattern, p.name)) names.insert(p.name);
  return names;
}

/// Prefixes of the model, single tensors of all kinds, and all but one.
const std::vector<std::vector<std::string>> kPatterns = {
    {"wte"},
    {"wpe"},
    {"wte", "wpe"},
    {"wte", "wpe", "h.0"},
    {"wte", "wpe", "h.[0-1]", "h.2.mlp"},
    {"wte", "wpe", "h"},
    {"wte", "wpe", "h", "ln_f.weight"},
    {"wte", "wpe", "ln_f", "lm_head", "h.[013]", "h.2.[al]*", "h.2.mlp.c_proj", "h.2.mlp.*.bias"},
    {"h.1", "h.3"},
    {"*.bias"},
    {"*.weight"},
    {"h.*.ln_?.weight", "h.*.c_attn.bias", "ln_f.bias"},
};

template <class Real>
InProcessPipeline<Real> pipeline_of(const Gpt2Config& config, const std::vector<int>& partition,
                                    const PipelineShape& shape,
                                    const OptimizerSettings& settings = {}) {
  InProcessPipeline<Real> pipeline(config, partition, shape, settings);
  for (int k = 0; k < pipeline.stage_count(); ++k)
    initialise_weights(config, 3, pipeline.stage(k).parameters());
  return pipeline;
}

struct Kernels final : test::LaunchObserver {
  void kernel(const char* label, std::uint32_t) override { ++launched[label]; }
  void fence(const char*, std::uint32_t) override {}
  std::map<std::string, int> launched;
};

}  // namespace

TEST_CASE("What is frozen changes no bit of the other gradients", "[models][frozen]") {
  use_single_threaded_blas();
  const bool tied = GENERATE(true, false);
  const Gpt2Config config = small_config(GENERATE(0.0, 0.2), tied);
  const StepData data = random_step(kSamples, kTokens, config.vocabulary_size, 4);
  PipelineShape shape{2, kTokens, 3};
  auto all = pipeline_of<float>(config, {kBlocks}, shape);
  const double loss = all.gradients(data, 4);
  const auto expected = all.parameter_gradients();
  for (const std::vector<std::string>& patterns : kPatterns) {
    shape.frozen = names_of(config, patterns);
    REQUIRE_FALSE(shape.frozen.empty());
    for (const std::vector<int>& partition : {std::vector<int>{4}, {1, 3}, {2, 1, 1}})
      for (const Schedule& schedule : schedules())
        for (const bool recompute : {false, true}) {
          CAPTURE(patterns, partition, schedule.name, recompute);
          shape.schedule = schedule.name;
          shape.recompute = recompute;
          auto pipeline = pipeline_of<float>(config, partition, shape);
          CHECK(pipeline.gradients(data, 4) == loss);
          std::size_t different = 0;
          for (const auto& [name, values] : pipeline.parameter_gradients())
            different +=
                shape.frozen.contains(name) ? !values.empty() : values != expected.at(name);
          CHECK(different == 0);
          CHECK(pipeline.evaluate(data) == all.evaluate(data));
        }
  }
}

TEST_CASE("AdamW trains what is not frozen, with its gradients' norm", "[models][frozen]") {
  use_single_threaded_blas();
  const Gpt2Config config = small_config(0, GENERATE(true, false));
  OptimizerSettings settings;
  settings.weight_decay = 0.1;
  settings.clip_norm = 0.2;
  settings.beta1 = 0.8;
  settings.beta2 = 0.9;
  const double rate = 1e-2;
  PipelineShape shape{3, kTokens, 2};
  for (const std::vector<std::string>& patterns : kPatterns) {
    CAPTURE(patterns);
    shape.frozen = {};
    auto reference = pipeline_of<double>(config, {kBlocks}, shape);
    auto values = reference.parameters();
    std::map<std::string, std::vector<double>> first, second;
    shape.frozen = names_of(config, patterns);
    auto pipeline = pipeline_of<double>(config, {2, 2}, shape, settings);
    const auto start = pipeline.parameters();
    for (int step = 0; step < 3; ++step) {
      const StepData data = random_step(kSamples, kTokens, config.vocabulary_size, step);
      // torch.optim.AdamW after torch.nn.utils.clip_grad_norm_, over the parameters that train.
      const double loss = reference.gradients(data, step);
      double square = 0;
      for (const auto& [name, gradient] : reference.parameter_gradients())
        if (!shape.frozen.contains(name))
          for (const double g : gradient) square += g * g;
      const double factor = std::min(1.0, settings.clip_norm / (std::sqrt(square) + 1e-6));
      for (const ParameterInfo& p : reference.stage(0).parameters().info()) {
        if (shape.frozen.contains(p.name)) continue;
        const std::vector<double> gradient = reference.parameter_gradients().at(p.name);
        std::vector<double>&value = values[p.name], &m = first[p.name], &v = second[p.name];
        m.resize(p.size);
        v.resize(p.size);
        for (std::size_t i = 0; i < p.size; ++i) {
          const double g = factor * gradient[i];
          if (p.decay) value[i] *= 1 - rate * settings.weight_decay;
          m[i] = settings.beta1 * m[i] + (1 - settings.beta1) * g;
          v[i] = settings.beta2 * v[i] + (1 - settings.beta2) * g * g;
          const double mean = m[i] / (1 - std::pow(settings.beta1, step + 1));
          const double root = std::sqrt(v[i] / (1 - std::pow(settings.beta2, step + 1)));
          value[i] -= rate * mean / (root + settings.epsilon);
        }
        reference.set_parameter(p.name, value);
      }
      const auto result = pipeline.train(data, step, rate);
      CHECK(result.loss == Approx(loss).epsilon(1e-9));
      CHECK(result.gradient_norm == Approx(std::sqrt(square)).epsilon(1e-7));
    }
    for (const auto& [name, trained] : pipeline.parameters()) {
      INFO(name);
      if (shape.frozen.contains(name)) {
        CHECK(trained == start.at(name));
        continue;
      }
      CHECK(trained != start.at(name));
      if (name.find("c_attn.bias") != std::string::npos) continue;  // the key's is rounding noise
      double worst = 0;
      for (std::size_t i = 0; i < trained.size(); ++i)
        worst = std::max(worst, std::abs(trained[i] - values.at(name)[i]));
      CHECK(worst < 1e-7);
    }
  }
}

TEST_CASE("Nothing is computed for frozen parameters, nor under the lowest trained one",
          "[models][frozen]") {
  const Gpt2Config config = small_config(0, true);
  const StepData data = random_step(kSamples, kTokens, config.vocabulary_size, 4);
  const auto launched = [&](const std::vector<std::string>& patterns) {
    PipelineShape shape{kSamples, kTokens, 1};
    shape.frozen = names_of(config, patterns);
    auto pipeline = pipeline_of<float>(config, {1, 3}, shape);
    Kernels kernels;
    test::observe_launches(&kernels);
    pipeline.gradients(data, 4);
    test::observe_launches(nullptr);
    return kernels.launched;
  };
  const char* const norm = "deltapipe::LayerNorm::backward";
  const char* const norm_parameters = "deltapipe::LayerNorm::parameterGradient";
  const char* const bias = "deltapipe::Linear::biasGradient";
  const char* const forward = "deltapipe::LayerNorm::forward";
  auto all = launched({});
  CHECK(all[norm] == 2 * kBlocks + 1);
  CHECK(all[norm_parameters] == 2 * kBlocks + 1);
  CHECK(all[bias] == 4 * kBlocks);
  for (const std::vector<std::string>& patterns : kPatterns) {
    CAPTURE(patterns);
    CHECK(launched(patterns)[forward] == all[forward]);
  }
  auto inner = launched({"h.1", "h.3"});  // gradients pass through
  CHECK(inner[norm] == 2 * kBlocks + 1);
  CHECK(inner[norm_parameters] == 2 * 2 + 1);
  CHECK(inner[bias] == 4 * 2);
  auto prefix = launched({"wte", "wpe", "h.[0-1]"});
  CHECK(prefix[norm] == 2 * 2 + 1);
  CHECK(prefix[bias] == 4 * 2);
  auto head = launched({"wte", "wpe", "h"});
  CHECK(head[norm] == 1);
  CHECK(head[bias] == 0);
}

TEST_CASE(
    "A stage takes gradients and moments for what is trained, and activations for blocks "
    "with a backward pass",
    "[models][frozen]") {
  const Gpt2Config config = small_config(0, true);
  StageCapacity capacity;
  capacity.samples = 3;
  capacity.tokens = kTokens;
  capacity.slots = 2;
  capacity.micro_batches = 4;
  capacity.embedding_rows = 7;
  const auto memory = [&](const std::vector<std::string>& patterns, const StagePart& part) {
    return Gpt2Stage<float>(config, part, names_of(config, patterns)).memory(capacity);
  };
  const StagePart whole{0, kBlocks, true, true}, middle{1, 2, false, false};
  const auto all = memory({}, whole), tables = memory({"w*"}, whole);
  CHECK(tables.bytes(MemoryUse::weights) == all.bytes(MemoryUse::weights));
  // Tensors begin at multiples of 16 elements.
  const std::uint64_t size = (37 * 21 + 15) / 16 * 16 + (9 * 21 + 15) / 16 * 16;
  CHECK(all.bytes(MemoryUse::optimizer) - tables.bytes(MemoryUse::optimizer) == 3 * 4 * size);
  CHECK(all.bytes(MemoryUse::activations) == tables.bytes(MemoryUse::activations));
  CHECK(all.bytes(MemoryUse::embeddings) > tables.bytes(MemoryUse::embeddings));

  const auto partly = memory({"w*", "h.[0-1]"}, whole);
  CHECK(partly.bytes(MemoryUse::activations) < 0.8 * all.bytes(MemoryUse::activations));
  // If the stage before requires a gradient, all blocks have one to pass on.
  CHECK(memory({"h.1"}, middle).bytes(MemoryUse::activations) ==
        memory({}, middle).bytes(MemoryUse::activations));
  capacity.input_gradient = false;
  CHECK(memory({"h.1"}, middle).bytes(MemoryUse::activations) <
        memory({}, middle).bytes(MemoryUse::activations));

  Gpt2Stage<float> stage(config, whole, names_of(config, {"h.1", "h.2", "wpe"}));
  stage.parameters().allocate(true);
  for (int i = 0; i < static_cast<int>(stage.parameters().info().size()); ++i) {
    const ParameterInfo& p = stage.parameters().info()[i];
    INFO(p.name);
    const std::size_t elements = p.frozen ? 0 : p.size;
    CHECK(p.frozen == (p.name == "wpe.weight" || p.name[2] == '1' || p.name[2] == '2'));
    CHECK(stage.parameters().value(i).extent(0) == p.size);
    CHECK(stage.parameters().gradient(i).extent(0) == elements);
    CHECK(stage.parameters().moment1(i).extent(0) == elements);
    CHECK(stage.parameters().moment2(i).extent(0) == elements);
  }
  CHECK(Optimizer<float>::memory(stage.parameters().info()).host_bytes() +
            Optimizer<float>::memory(stage.parameters().info()).device_bytes() <
        Optimizer<float>::memory(Gpt2Stage<float>(config, whole).parameters().info()).host_bytes() +
            Optimizer<float>::memory(Gpt2Stage<float>(config, whole).parameters().info())
                .device_bytes());
}

TEST_CASE("Buckets are announced once each, empty ones as well", "[models][frozen]") {
  const Gpt2Config config = small_config(0, true);
  Gpt2Stage<float> stage(config, {0, 4, true, true}, true, names_of(config, {"w*", "h.[0-1]"}));
  stage.reserve({2, 3, 1, 1, 6, true, false});
  initialise_weights(config, 1, stage.parameters());
  const auto tokens = test::to_device(std::vector<std::int32_t>{1, 2, 3, 4, 5, 6});
  const auto ids = test::to_device(std::vector<std::uint64_t>{1, 2});
  const MicroBatch batch = test::text_batch(2, 3, ids, tokens, tokens);
  const ExecSpace exec;
  stage.forward(exec, batch, 0, true, false);
  std::vector<int> order;
  stage.backward(exec, batch, 0, false, [&](int bucket) { order.push_back(bucket); });
  CHECK(order == std::vector<int>{5, 4, 3, 2, 1, 0});
  std::vector<bool> empty;
  for (const BucketRange& range : stage.parameters().buckets())
    empty.push_back(range.begin == range.end);
  CHECK(empty == std::vector<bool>{true, true, true, false, false, false, true});
}
