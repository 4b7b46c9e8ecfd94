// SPDX-License-Identifier: BSD-3-Clause
// A rank's part of a training run of a small GPT-2, all of it built from nothing.
#pragma once

#include <mpi.h>

#include <catch2/catch.hpp>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/training/stages.hpp"
#include "app/training/training_run.hpp"
#include "core/base/state/state_in_memory.hpp"
#include "core/data/token_store.hpp"
#include "models/model.hpp"
#include "models/parameter_patterns.hpp"
#include "models/partition.hpp"
#include "mpi_test.hpp"

namespace deltapipe::test {

inline constexpr int kTokens = 6, kVocabulary = 19, kBlocks = 6;
inline constexpr std::uint64_t kSamples = 22, kSeed = 5;

/// Some samples are shorter than T.
inline TokenDataset dataset(std::uint64_t samples = kSamples) {
  auto store = std::make_shared<TokenStore>(kVocabulary);
  std::vector<std::int32_t> tokens;
  std::uint32_t random = 3;
  for (std::uint64_t i = 0; i < samples * kTokens + 1; ++i) {
    random = random * 1664525u + 1013904223u;
    tokens.push_back(static_cast<std::int32_t>((random >> 12) % kVocabulary));
  }
  store->append(tokens);
  std::vector<TokenWindow> windows;
  for (std::uint64_t id = 0; id < samples; ++id)
    windows.push_back({id * kTokens, id % 5 == 4 ? 3 : kTokens});
  return {store, windows, kTokens, 0};
}

inline std::unique_ptr<Model> small_model(bool freezes = false) {
  NewModel shape;
  shape.blocks = kBlocks;
  shape.heads = 2;
  shape.channels = 16;
  shape.positions = kTokens;
  shape.vocabulary = kVocabulary;
  std::unique_ptr<Model> model = model_types().front().create(shape);
  model->set_dropout({0.1, 0.1, 0.1});
  std::set<std::string> frozen;
  if (freezes)
    for (const char* const pattern : {"wte", "wpe", "h.0", "h.2.attn"})
      for (const std::string& name : matching_parameters(*model, pattern)) frozen.insert(name);
  model->freeze(frozen);
  return model;
}

inline std::vector<int> small_partition(int stages) {
  return balanced_partition(kBlocks, stages, small_model()->cost(kTokens));
}

/// Several stages on each rank.
inline void interleave(PipelineOptions& options, int stages_per_rank) {
  options.pipeline.stages_per_rank = stages_per_rank;
  options.pipeline.schedule = "interleaved";
}

inline int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

/// Compares everything except for times, which no two runs have in common.
inline void check_same(const StateContent& content, const StateContent& expected) {
  REQUIRE(content.parts.size() == expected.parts.size());
  for (std::size_t i = 0; i < content.parts.size(); ++i) {
    INFO(content.parts[i].name);
    REQUIRE(content.parts[i].items.size() == expected.parts[i].items.size());
    for (std::size_t j = 0; j < content.parts[i].items.size(); ++j) {
      const std::string& name = content.parts[i].items[j].item.name;
      INFO(name);
      if (content.parts[i].name == "run" && (name == "seconds" || name == "stages")) continue;
      CHECK((content.parts[i].items[j] == expected.parts[i].items[j]));
    }
  }
}

inline OptimizerSettings constant_rate() {
  OptimizerSettings settings;
  settings.learning_rate = 1e-2;
  settings.schedule = LearningRateSchedule::constant;
  settings.clip_norm = 0;
  return settings;
}

/// A rank's part of a run of small_model(), with the training library.
class SmallRun {
 public:
  /// Without training it only evaluates. freezes: a part of the parameters.
  explicit SmallRun(const PipelineOptions& options, bool freezes = false, bool training = true,
                    const OptimizerSettings& optimizer = constant_rate())
      : grid_(MPI_COMM_WORLD, options.pipeline.stages, options.pipeline.replicas,
              options.pipeline.stages_per_rank),
        progress_(MPI_COMM_WORLD),
        model_(small_model(freezes)),
        data_(dataset()),
        layout_(step_layout(options)) {
    const std::vector<int> partition = small_partition(grid_.stages());
    Stages stages =
        make_stages(*model_, partition, grid_, training, options.products, optimizer.moments());
    for (const auto& stage : stages) model_->initialise(kSeed, stage->parameters());
    TrainingPlan plan;
    plan.pipeline = options;
    plan.shape = pipeline_shape(options, *model_, partition, data_, training);
    plan.optimizer = optimizer;
    plan.shape.steps = 1000;
    if (training) {
      run_ =
          std::make_unique<TrainingRun>(plan, *model_, std::move(stages), data_, grid_, progress_);
      return;
    }
    stages_ = std::move(stages);
    evaluated_ =
        std::make_unique<Pipeline>(options, plan.shape, grid_, progress_, pointers_to(stages_));
  }
  ~SmallRun() { barrier(progress_, MPI_COMM_WORLD); }

  void train(int steps) {
    for (int i = 0; i < steps; ++i) losses_.push_back(run_->step().loss);
  }

  /// Sum of the losses of all samples, which are those of the training; 0 but on the last stage.
  /// flows: without waiting for the rows of a shared embedding between steps.
  double evaluate(EvaluationMode mode, bool flows = true) {
    const StepPlanner planner = evaluation_planner();
    double sum = 0;
    const std::uint64_t steps = planner.steps_per_epoch();
    for (std::uint64_t step = 0; step < steps; ++step) {
      const StepPlan next = planner.plan((step + 1) % steps, grid_.replica());
      pipeline().evaluate_step(data_, planner.plan(step, grid_.replica()), mode,
                               flows && step + 1 < steps ? &next : nullptr);
      sum += pipeline().loss_sum();
    }
    const std::vector<double> sent = pipeline().take_sent_bytes().forward;
    sent_bytes_ += std::accumulate(sent.begin(), sent.end(), 0.0);
    return sum;
  }
  /// In their order.
  StepPlanner evaluation_planner() const { return {data_, 0, false, layout_}; }
  /// To next stages by evaluations since the last call.
  double take_sent_bytes() { return std::exchange(sent_bytes_, 0); }
  const ProcessGrid& grid() const { return grid_; }
  TrainingRun& run() { return *run_; }
  const TokenDataset& data() const { return data_; }
  /// On the wire in all training steps.
  std::uint64_t trained_bytes() const { return run_->totals().bytes; }

  std::vector<StatePart> state() { return run_->state(); }
  /// Mean loss of each step.
  const std::vector<double>& losses() const { return losses_; }
  std::uint64_t steps_per_epoch() const { return run_->planner().steps_per_epoch(); }
  std::string file_in(const std::string& directory) const {
    return directory + "/rank" + std::to_string(grid_.rank()) + ".h5";
  }

 private:
  Pipeline& pipeline() { return run_ ? run_->pipeline() : *evaluated_; }

  ProcessGrid grid_;
  ProgressThread progress_;
  std::unique_ptr<Model> model_;
  TokenDataset data_;
  StepPlanner::Layout layout_;
  std::unique_ptr<TrainingRun> run_;  ///< null: it only evaluates, with the following
  Stages stages_;
  std::unique_ptr<Pipeline> evaluated_;
  std::vector<double> losses_;
  double sent_bytes_ = 0;
};

}  // namespace deltapipe::test
