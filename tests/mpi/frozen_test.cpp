// SPDX-License-Identifier: BSD-3-Clause
// Frozen parameters over stages and replicas: what one rank alone trains, with nothing sent for
// what is frozen.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <memory>

#include "app/training/training_run.hpp"
#include "comm/transport/collectives.hpp"
#include "models/gpt2/gpt2_model.hpp"
#include "models/parameter_patterns.hpp"
#include "mpi_test.hpp"
#include "small_run.hpp"
#include "support/device_values.hpp"

namespace deltapipe {
namespace {

constexpr int kTokens = 6, kVocabulary = 19, kBlocks = 4, kSteps = 3;
constexpr std::uint64_t kSamples = 17, kSeed = 5;  // the third step has one sample

std::unique_ptr<Model> small_model(bool tied, const std::vector<std::string>& patterns) {
  Gpt2Config config;
  config.n_layer = kBlocks;
  config.n_head = 2;
  config.n_embd = 16;
  config.n_inner = 40;
  config.n_positions = kTokens;
  config.vocabulary_size = kVocabulary;
  config.initializer_range = 0.2;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0.1;
  config.tie_word_embeddings = tied;
  auto model = std::make_unique<Gpt2Model>(config);
  std::set<std::string> frozen;
  for (const std::string& pattern : patterns)
    for (const std::string& name : matching_parameters(*model, pattern)) frozen.insert(name);
  model->freeze(frozen);
  return model;
}

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> parameters;  ///< of this rank
  std::set<std::string> unchanged;                       ///< of them
  // Sent by all ranks: over each boundary, by the exchange of token rows, and for the sums over
  // replicas of this rank's stage.
  std::vector<std::uint64_t> gradient_bytes;
  std::uint64_t tied_row_bytes = 0, tied_gradient_bytes = 0;
  double replica_bytes = 0;
};

/// Trains on the ranks of a communicator; batches of 8 samples whatever the layout.
Outcome train(MPI_Comm world, const Model& model, PipelineOptions options) {
  const int stages = options.pipeline.stages, replicas = options.pipeline.replicas;
  options.seed = kSeed;
  options.micro_batch_size = 2;
  options.micro_batches = 4 / replicas;
  const ProcessGrid grid(world, stages, replicas);
  ProgressThread progress(world);
  const TokenDataset data = test::dataset(kSamples);
  const std::vector<int> partition = balanced_partition(kBlocks, stages, model.cost(kTokens));
  Stages made = make_stages(model, partition, grid, true);
  model.initialise(kSeed, made.front()->parameters());
  const ParameterArena<float>& parameters = made.front()->parameters();
  const auto values = [&] {
    std::map<std::string, std::vector<float>> all;
    for (std::size_t i = 0; i < parameters.info().size(); ++i)
      all[parameters.info()[i].name] = test::to_host(parameters.value(static_cast<int>(i)));
    return all;
  };
  const auto start = values();
  TrainingPlan plan;
  plan.pipeline = options;
  plan.shape = pipeline_shape(options, model, partition, data);
  plan.shape.steps = kSteps;
  plan.optimizer = test::constant_rate();
  plan.shuffle = false;
  TrainingRun run(plan, model, std::move(made), data, grid, progress);
  Outcome outcome;
  outcome.gradient_bytes.resize(stages - 1);
  for (int i = 0; i < kSteps; ++i) {
    const StepRecord step = run.step();
    outcome.losses.push_back(step.loss);
    outcome.norms.push_back(step.gradient_norm);
    for (int b = 0; b + 1 < stages; ++b) outcome.gradient_bytes[b] += step.backward.bytes[b];
    outcome.tied_row_bytes += step.tied_row_bytes;
    outcome.tied_gradient_bytes += step.tied_gradient_bytes;
    outcome.replica_bytes +=
        step.ranks[grid.stage()][static_cast<std::size_t>(RankValue::replica_bytes)];
  }
  outcome.parameters = values();
  for (const auto& [name, value] : outcome.parameters)
    if (value == start.at(name)) outcome.unchanged.insert(name);
  run.pipeline().evaluate_step(data, run.planner().plan(0, grid.replica()));
  barrier(progress, world);
  return outcome;
}

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

const std::vector<std::vector<std::string>> kPatterns = {
    {},
    {"wte"},
    {"wte", "wpe", "h.0"},
    {"wte", "wpe", "h.[0-1]", "h.2.attn"},
    {"wte", "wpe", "h", "lm_head", "ln_f.weight"},
    {"h.3", "ln_f", "*.bias"},
};

TEST_CASE("Stages and replicas train what is not frozen as one rank does", "[frozen]") {
  const int ranks = world_size();
  const int replicas = GENERATE(1, 2, 4);
  if (ranks % replicas != 0) return;
  const int stages = ranks / replicas;
  const bool tied = GENERATE(true, false);
  PipelineOptions options;
  options.pipeline.schedule = GENERATE("gpipe", "1f1b", "zb-h1");
  for (const std::vector<std::string>& patterns : kPatterns) {
    CAPTURE(stages, replicas, tied, options.pipeline.schedule, patterns);
    const std::unique_ptr<Model> model = small_model(tied, patterns);
    const Outcome alone = train(MPI_COMM_SELF, *model, PipelineOptions());
    options.pipeline.stages = stages;
    options.pipeline.replicas = replicas;
    const Outcome together = train(MPI_COMM_WORLD, *model, options);
    CHECK(alone.unchanged == model->frozen());
    for (int step = 0; step < kSteps; ++step) {
      CHECK(together.losses[step] == Approx(alone.losses[step]).epsilon(1e-5));
      CHECK(together.norms[step] == Approx(alone.norms[step]).epsilon(1e-4));
    }
    for (const auto& [name, values] : together.parameters) {
      INFO(name);
      CHECK(together.unchanged.contains(name) == model->frozen().contains(name));
      if (replicas == 1) {
        CHECK(values == alone.parameters.at(name));
        continue;
      }
      // Sums over replicas come in another order; AdamW's first steps take a gradient's sign.
      double difference = 0, size = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        difference += std::pow(values[i] - alone.parameters.at(name)[i], 2);
        size += std::pow(values[i], 2);
      }
      CHECK(difference <= 1e-3 * size + 1e-3);
    }
  }
}

TEST_CASE("Nothing is sent for what is frozen", "[frozen]") {
  const int ranks = world_size();
  const int replicas = GENERATE(1, 2);
  if (ranks % replicas != 0 || ranks == 1) return;
  PipelineOptions options;
  options.pipeline.stages = ranks / replicas;
  options.pipeline.replicas = replicas;
  options.forward.kind = CodecKind::aqsgd;
  options.forward.bits = 4;
  options.backward.kind = CodecKind::directq;
  options.backward.bits = 8;
  options.backward.error_feedback = true;
  options.cache.verify_every = 1;
  const ProcessGrid grid(MPI_COMM_WORLD, options.pipeline.stages, replicas);
  const int stage = grid.stage(), last = options.pipeline.stages - 1;
  const std::vector<int> partition =
      balanced_partition(kBlocks, options.pipeline.stages, small_model(true, {})->cost(kTokens));
  for (const std::vector<std::string>& patterns : kPatterns) {
    const std::unique_ptr<Model> model = small_model(true, patterns);
    const Outcome outcome = train(MPI_COMM_WORLD, *model, options);
    const int first = first_trained_stage(*model, partition);
    CAPTURE(patterns, stage, first);
    // Replica 1 of two has no sample in the third step, but in those before.
    for (int b = 0; b < last; ++b) CHECK((outcome.gradient_bytes[b] > 0) == (b >= first));
    const bool wte_frozen = model->frozen().contains("wte.weight");
    if (last > 0) {
      CHECK((outcome.tied_row_bytes > 0) == !wte_frozen);
      CHECK((outcome.tied_gradient_bytes > 0) == !wte_frozen);
    }
    std::size_t trained = 0;
    for (const ParameterInfo& p : model->parameters(stage_part(partition, stage)))
      trained += p.frozen ? 0 : p.size;
    if (replicas == 1) {
      CHECK(outcome.replica_bytes == 0);
    } else if (grid.replica() == 0) {
      CHECK((outcome.replica_bytes > 0) == (trained > 0));
    }
    CHECK(outcome.unchanged.size() ==
          static_cast<std::size_t>(
              std::count_if(outcome.parameters.begin(), outcome.parameters.end(),
                            [&](const auto& p) { return model->frozen().contains(p.first); })));
  }
}

}  // namespace
}  // namespace deltapipe
