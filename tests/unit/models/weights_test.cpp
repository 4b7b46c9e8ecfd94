// SPDX-License-Identifier: BSD-3-Clause
// Initial and stored weights, partitions and learning rates.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>

#include "core/base/error.hpp"
#include "models/gpt2/gpt2_model.hpp"
#include "models/gpt2/gpt2_stage.hpp"
#include "models/optimizer.hpp"
#include "models/partition.hpp"
#include "support/device_values.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using deltapipe::test::to_host;
using deltapipe::testing::message_of;
using deltapipe::testing::TemporaryDirectory;

namespace {

Gpt2Config small_config() {
  Gpt2Config config;
  config.n_layer = 3;
  config.n_head = 2;
  config.n_embd = 64;
  config.n_inner = 256;
  config.n_positions = 40;
  config.vocabulary_size = 301;
  return config;
}

using Values = std::map<std::string, std::vector<float>>;

Values values_of(const ParameterArena<float>& parameters) {
  Values values;
  for (std::size_t i = 0; i < parameters.info().size(); ++i)
    values[parameters.info()[i].name] = to_host(parameters.value(static_cast<int>(i)));
  return values;
}

Values initial_values(const Gpt2Config& config, std::uint64_t seed,
                      const std::vector<int>& partition) {
  Values all;
  for (int k = 0; k < static_cast<int>(partition.size()); ++k) {
    Gpt2Stage<float> stage(config, stage_part(partition, k), false);
    initialise_weights(config, seed, stage.parameters());
    all.merge(values_of(stage.parameters()));
  }
  return all;
}

/// Writes a model of `config` but for the named tensor; returns the directory's tensors.
void save_without(const TemporaryDirectory& directory, const Gpt2Config& config,
                  const std::string& left_out, const Values& values) {
  Gpt2Stage<float> stage(config, {0, config.n_layer, true, true}, false);
  std::vector<TensorDeclaration> declared;
  for (const auto& tensor :
       tensor_declarations(Gpt2Model(config), stage.parameters().info(), Precision::fp32))
    if (tensor.name != left_out) declared.push_back(tensor);
  SafetensorsWriter writer(directory / "model.safetensors", declared);
  for (const auto& [name, tensor] : values)
    if (gpt2_names().saved(name) != left_out) writer.write_fp32(gpt2_names().saved(name), tensor);
  writer.finish();
}

/// Work of the most loaded stage.
double load_of(const std::vector<int>& partition, const ModelCost& cost) {
  double load = 0;
  for (std::size_t k = 0; k < partition.size(); ++k)
    load = std::max(load, partition[k] * cost.block + (k == 0 ? cost.stem : 0) +
                              (k + 1 == partition.size() ? cost.head : 0));
  return load;
}

/// The least of load_of over all partitions.
double best_load(int blocks, int stages, const ModelCost& cost, std::vector<int> begun = {}) {
  if (stages == 1) {
    begun.push_back(blocks);
    return load_of(begun, cost);
  }
  double best = INFINITY;
  for (int mine = 1; mine <= blocks - stages + 1; ++mine) {
    std::vector<int> next = begun;
    next.push_back(mine);
    best = std::min(best, best_load(blocks - mine, stages - 1, cost, next));
  }
  return best;
}

}  // namespace

TEST_CASE("Initial weights have Hugging Face's distribution", "[models][weights]") {
  const Gpt2Config config = small_config();
  const Values values = initial_values(config, 5, {3});
  CHECK(values.size() == 2 + 3 * 12 + 2);
  for (const auto& [name, tensor] : values) {
    INFO(name);
    const double n = static_cast<double>(tensor.size());
    double mean = 0, square = 0, fourth = 0;
    for (const double x : tensor) mean += x / n, square += x * x / n, fourth += x * x * x * x / n;
    if (name.find(".bias") != std::string::npos) {
      CHECK(square == 0);
    } else if (name.find("ln_") != std::string::npos) {
      CHECK((mean == 1 && square == 1));
    } else {
      const bool residual = name.find("c_proj") != std::string::npos;
      const double deviation = residual ? 0.02 / std::sqrt(6.0) : 0.02;
      CHECK(std::sqrt(square) == Approx(deviation).epsilon(4 / std::sqrt(2 * n)));
      CHECK(mean == Approx(0).margin(4 * deviation / std::sqrt(n)));
      CHECK(fourth / (square * square) == Approx(3).margin(4 * std::sqrt(24 / n)));  // normal
    }
  }
  CHECK(values.at("h.0.attn.c_attn.weight") != values.at("h.1.attn.c_attn.weight"));
}

TEST_CASE("Initial weights depend on the seed and not on the partition", "[models][weights]") {
  const Gpt2Config config = small_config();
  const Values whole = initial_values(config, 5, {3});
  CHECK(whole == initial_values(config, 5, {1, 2}));
  CHECK(whole == initial_values(config, 5, {1, 1, 1}));
  CHECK(whole != initial_values(config, 6, {3}));
}

SafetensorsReader weights_in(const TemporaryDirectory& directory) {
  return SafetensorsReader::open_directory(directory.path());
}

TEST_CASE("Saved weights load again, whole and by stages", "[models][weights]") {
  const TemporaryDirectory directory;
  for (const bool tied : {true, false}) {
    Gpt2Config config = small_config();
    config.tie_word_embeddings = tied;
    const Values values = initial_values(config, 5, {3});
    CHECK(values.count("lm_head.weight") == (tied ? 0 : 1));
    save_without(directory, config, "", values);
    Values loaded;
    for (int k = 0; k < 2; ++k) {
      Gpt2Stage<float> stage(config, stage_part({1, 2}, k), false);
      load_weights(weights_in(directory), gpt2_names(), stage.parameters());
      loaded.merge(values_of(stage.parameters()));
    }
    CHECK(loaded == values);
  }
}

TEST_CASE("Missing tensors and other shapes are the user's mistake", "[models][weights]") {
  const TemporaryDirectory directory;
  const Gpt2Config config = small_config();
  const Values values = initial_values(config, 5, {3});
  Gpt2Stage<float> stage(config, {0, 3, true, true}, false);
  const auto load = [&](Gpt2Stage<float>& into) {
    return message_of<UserError>(
        [&] { load_weights(weights_in(directory), gpt2_names(), into.parameters()); });
  };
  CHECK_THAT(load(stage), Catch::Contains("model.safetensors"));  // no such file

  save_without(directory, config, "transformer.h.1.mlp.c_fc.bias", values);
  CHECK_THAT(load(stage), Catch::Contains("transformer.h.1.mlp.c_fc.bias"));
  // A stage that does not need the tensor does not miss it.
  Gpt2Stage<float> last(config, {2, 1, false, true}, false);
  CHECK_NOTHROW(load_weights(weights_in(directory), gpt2_names(), last.parameters()));

  save_without(directory, config, "", values);
  Gpt2Config wider = config;
  wider.vocabulary_size = 302;
  Gpt2Stage<float> other(wider, {0, 3, true, true}, false);
  const std::string message = load(other);
  CHECK_THAT(message, Catch::Contains("transformer.wte.weight") && Catch::Contains("301") &&
                          Catch::Contains("302"));
}

namespace {

bool has_own_head(const TemporaryDirectory& directory) {
  return has_own_matrix(weights_in(directory), gpt2_names(), "lm_head.weight", "wte.weight");
}

}  // namespace

TEST_CASE("A stored output matrix is distinguished from the token embedding", "[models][weights]") {
  const TemporaryDirectory directory;
  Gpt2Config config = small_config();
  Values values = initial_values(config, 5, {3});
  save_without(directory, config, "", values);
  CHECK_FALSE(has_own_head(directory));  // tied: no such tensor
  config.tie_word_embeddings = false;
  values = initial_values(config, 5, {3});
  values["lm_head.weight"] = values.at("wte.weight");
  save_without(directory, config, "", values);
  CHECK_FALSE(has_own_head(directory));
  values["lm_head.weight"].back() += 1;
  save_without(directory, config, "", values);
  CHECK(has_own_head(directory));
}

TEST_CASE("The balanced partition is as good as the best of all", "[models][partition]") {
  const double stem = GENERATE(0.0, 0.25, 1.5, 6.0);
  for (const double head : {0.0, 0.4, 1.0, 2.5, 7.0, 100.0})
    for (int blocks = 1; blocks <= 10; ++blocks)
      for (int stages = 1; stages <= blocks; ++stages) {
        const ModelCost cost{1.0, head, stem};
        const auto partition = balanced_partition(blocks, stages, cost);
        INFO(blocks << " blocks, " << stages << " stages, head " << head << ", stem " << stem);
        REQUIRE(static_cast<int>(partition.size()) == stages);
        REQUIRE(std::accumulate(partition.begin(), partition.end(), 0) == blocks);
        REQUIRE(*std::min_element(partition.begin(), partition.end()) >= 1);
        REQUIRE(load_of(partition, cost) == best_load(blocks, stages, cost));
        const auto end = stem > 0 && stages > 1 ? partition.rend() - 1 : partition.rend();
        REQUIRE(std::is_sorted(partition.rbegin() + 1, end));  // earlier ones more
      }
}

TEST_CASE("GPT-2's cost: a head of 50257 tokens weighs several blocks", "[models][partition]") {
  const ModelCost cost = gpt2_cost(Gpt2Config(), 1024);
  CHECK(cost.head / cost.block == Approx(4.9).epsilon(0.2));
  const auto partition = balanced_partition(12, 4, cost);
  CHECK(partition == std::vector<int>{4, 4, 3, 1});
  // 6 operations a parameter and token; a block has 12 C^2 parameters.
  CHECK(gpt2_cost(Gpt2Config(), 1).block == Approx(6.0 * 12 * 768 * 768).epsilon(0.01));
}

TEST_CASE("Partitions that do not fit are named with a remedy", "[models][partition]") {
  CHECK_THAT(message_of<UserError>([] {
               balanced_partition(4, 5, {1, 1});
             }),
             Catch::Contains("5 stages") && Catch::Contains("at most 4"));
  CHECK_NOTHROW(check_partition({1, 2, 1}, 4, 3));
  for (const std::vector<int>& bad :
       {std::vector<int>{}, {4}, {2, 2}, {1, 2, 2}, {2, 2, 0}, {3, 2, -1}, {1, 1, 1, 1}}) {
    const std::string message = message_of<UserError>([&] { check_partition(bad, 4, 3); });
    CHECK_THAT(message, Catch::Contains("pipeline.partition") && Catch::Contains("3 positive") &&
                            Catch::Contains("4 blocks"));
  }
  const StagePart part = stage_part({2, 3, 1}, 1);
  CHECK((part.first_block == 2 && part.blocks == 3 && !part.first && !part.last));
  CHECK((stage_part({2, 3, 1}, 0).first && stage_part({2, 3, 1}, 2).last));
}

TEST_CASE("Learning rates are those of transformers' schedulers", "[models][optimizer]") {
  OptimizerSettings settings;
  settings.learning_rate = 0.5;
  settings.warmup_steps = GENERATE(0, 1, 4);
  const std::uint64_t steps = 20;
  const double warmup = static_cast<double>(settings.warmup_steps);
  for (std::uint64_t step = 0; step < steps + 3; ++step) {
    INFO("warm-up " << warmup << ", step " << step);
    const double s = static_cast<double>(step);
    // get_*_schedule_with_warmup's lambdas.
    const bool warming = step < settings.warmup_steps;
    const double rising = s / std::max(1.0, warmup);
    const double linear = warming ? rising : std::max(0.0, (20 - s) / std::max(1.0, 20 - warmup));
    const double progress = std::min(1.0, (s - warmup) / std::max(1.0, 20 - warmup));
    const double cosine = warming ? rising : 0.5 * (1 + std::cos(M_PI * progress));
    const auto rate = [&](LearningRateSchedule schedule) {
      settings.schedule = schedule;
      return learning_rate_at(settings, step, steps);
    };
    CHECK(rate(LearningRateSchedule::constant) == Approx(0.5 * (warming ? rising : 1)));
    CHECK(rate(LearningRateSchedule::linear) == Approx(0.5 * linear).margin(1e-15));
    CHECK(rate(LearningRateSchedule::cosine) == Approx(0.5 * cosine).margin(1e-15));
    settings.final_learning_rate_fraction = 0.1;
    CHECK(rate(LearningRateSchedule::linear) ==
          Approx(0.5 * (warming ? rising : 0.1 + 0.9 * linear)));
    settings.final_learning_rate_fraction = 0;
  }
  settings.warmup_steps = 30;  // longer than the run
  CHECK(learning_rate_at(settings, 19, 20) == Approx(0.5 * 19 / 30));
  settings.warmup_steps = 0;
  CHECK(std::isfinite(learning_rate_at(settings, 0, 0)));
  // CosineAnnealingLR with T_max = 40 in a run of 20 steps, and an end before the last step.
  settings.schedule = LearningRateSchedule::cosine;
  settings.decay_steps = 40;
  for (const std::uint64_t step : {0u, 1u, 10u, 19u})
    CHECK(learning_rate_at(settings, step, 20) ==
          Approx(0.25 * (1 + std::cos(M_PI * static_cast<double>(step) / 40))));
  settings.schedule = LearningRateSchedule::linear;
  settings.decay_steps = 10;
  settings.final_learning_rate_fraction = 0.2;
  CHECK(learning_rate_at(settings, 5, 20) == Approx(0.5 * 0.6));
  CHECK(learning_rate_at(settings, 15, 20) == Approx(0.5 * 0.2));
}
