// SPDX-License-Identifier: BSD-3-Clause
// A second kind of data, task and model: labelled vectors, classification, and an MLP of blocks.
#pragma once

#include <mpi.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/training/prediction.hpp"
#include "app/training/stages.hpp"
#include "app/training/training_run.hpp"
#include "core/base/numeric/random.hpp"
#include "models/blocks/block_stage.hpp"
#include "models/blocks/classification_head.hpp"
#include "models/blocks/transformer_block.hpp"
#include "models/weights.hpp"
#include "mpi_test.hpp"
#include "support/values_input.hpp"

namespace deltapipe::test {

inline constexpr int kRows = 3, kWidth = 5, kClasses = 3, kWide = 8, kMlpBlocks = 4;

/// A number in [-1, 1) that depends on all keys.
inline float noise(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  const std::uint64_t bits = mix_bits(a + mix_bits(b + mix_bits(c + 1)));
  return static_cast<float>(bits >> 40) / static_cast<float>(1 << 23) - 1;
}

/// Samples of one to three rows around the centre of their class. In training, each epoch adds
/// other noise to them.
class LabelledVectors final : public Dataset {
 public:
  /// `visits` receives all visits of samples; null: none are kept. For one thread.
  explicit LabelledVectors(std::uint64_t samples, std::vector<SampleVisit>* visits = nullptr)
      : samples_(samples), visits_(visits) {}

  std::uint64_t size() const override { return samples_; }
  int sequence_length() const override { return kRows; }
  FieldSizes fields() const override {
    FieldSizes sizes;
    sizes[Field::values] = kRows * kWidth;
    sizes[Field::label] = 1;
    return sizes;
  }
  int length(std::uint64_t id) const override { return 1 + static_cast<int>(id % kRows); }
  int targets(std::uint64_t) const override { return 1; }
  std::uint64_t all_targets() const override { return samples_; }
  std::uint64_t fingerprint() const override { return mix_bits(samples_); }
  void read(std::uint64_t id, const SampleVisit& visit, const SampleSpans& fields) const override {
    if (visits_) visits_->push_back(visit);
    const std::uint64_t label = mix_bits(id) % kClasses;
    const std::span<float> values = fields.reals(Field::values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = noise(7, label, i % kWidth) + 0.3f * noise(8, id, i);
      if (visit.training) values[i] += 0.1f * noise(visit.seed + visit.epoch, id, i);
    }
    for (std::int32_t& value : fields.integers(Field::label))
      value = static_cast<std::int32_t>(label);
  }

 private:
  std::uint64_t samples_;
  std::vector<SampleVisit>* visits_;
};

/// in -> MLP blocks -> classification of the mean row.
class VectorModel final : public Model {
 public:
  ModelShape shape() const override {
    return {.blocks = kMlpBlocks, .channels = kWide, .positions = kRows};
  }
  std::string description() const override { return "an MLP"; }
  std::vector<std::string> configuration() const override { return {}; }
  const Task& task() const override { return *task_; }
  DropoutProbabilities dropout() const override { return {}; }
  void set_dropout(const DropoutProbabilities&) override {}
  ModelCost cost(int) const override { return {.block = 1, .head = 0}; }
  std::unique_ptr<Stage<float>> make_stage(const StagePart& part) const override {
    return std::make_unique<BlockStage<float>>(
        [part](ParameterArena<float>& parameters) { return parts(part, parameters); }, frozen());
  }
  void initialise(std::uint64_t seed, ParameterArena<float>& parameters) const override {
    initialize_normal<float>(
        seed, [](const ParameterInfo&) { return 0.4; }, parameters);
  }
  void load(const SafetensorsReader&, ParameterArena<float>&) const override {}
  void check_weights(const std::string&, const SafetensorsReader&,
                     const std::vector<int>&) const override {}
  void save_configuration(const std::string&, Precision) const override {}
  TextEnds text_ends() const override { return {}; }
  std::string saved_name(const std::string& parameter) const override { return parameter; }

 private:
  static StageParts<float> parts(const StagePart& part, ParameterArena<float>& parameters) {
    StageParts<float> parts;
    parts.input_shape = [](int tokens) { return BoundaryShape{tokens, kWide}; };
    int bucket = 0;
    if (part.first)
      parts.first = std::make_unique<ValuesInput<float>>(parameters, "in", kWidth, kWide, bucket++);
    for (int i = 0; i < part.blocks; ++i, ++bucket) {
      const std::string name = "b" + std::to_string(part.first_block + i) + ".";
      const MlpOptions options{.channels = kWide,
                               .hidden = 2 * kWide,
                               .activation = Activation::relu,
                               .dropout = 0.05,
                               .dropout_site = static_cast<std::uint32_t>(part.first_block + i)};
      parts.blocks.push_back(
          {std::make_unique<MlpBlock<float>>(
               parameters, MlpNames{name + "norm", name + "up", name + "down"}, options, bucket),
           bucket});
    }
    if (part.last)
      parts.last = std::make_unique<ClassificationHead<float>>(
          parameters, ClassificationNames{"dense", "output"},
          ClassificationOptions{.channels = kWide, .classes = kClasses, .pooling = Pooling::mean},
          bucket);
    return parts;
  }

  std::unique_ptr<Task> task_ = make_task("classification", kClasses);
};

/// A rank's part of a training of VectorModel on `comm`.
class VectorRun {
 public:
  explicit VectorRun(const PipelineOptions& options, MPI_Comm comm = MPI_COMM_WORLD)
      : comm_(comm),
        grid_(comm, options.pipeline.stages, options.pipeline.replicas,
              options.pipeline.stages_per_rank),
        progress_(comm) {
    const std::vector<int> partition =
        balanced_partition(kMlpBlocks, grid_.stages(), model_.cost(kRows));
    Stages stages = make_stages(model_, partition, grid_, true);
    for (const auto& stage : stages) model_.initialise(5, stage->parameters());
    TrainingPlan plan;
    plan.pipeline = options;
    plan.shape = pipeline_shape(options, model_, partition, *data_.train);
    plan.shape.steps = 1000;
    plan.optimizer.learning_rate = 1e-2;
    plan.optimizer.schedule = LearningRateSchedule::constant;
    run_ = std::make_unique<TrainingRun>(plan, model_, std::move(stages), *data_.train, grid_,
                                         progress_);
  }
  ~VectorRun() { barrier(progress_, comm_); }

  void train(int steps) {
    for (int i = 0; i < steps; ++i) losses_.push_back(run_->step().loss);
  }
  void train_epochs(int epochs) {
    train(epochs * static_cast<int>(run_->planner().steps_per_epoch()));
  }
  /// Returns the probabilities of the validation samples on rank 0; empty on other ranks.
  std::vector<float> predict() {
    std::vector<float> all;
    deltapipe::predict(run_->evaluation_context(data_), *data_.validation, EvaluationMode::plain,
                       kClasses, [&](const Predictions& p) {
                         CHECK(p.first * kClasses == all.size());
                         all.insert(all.end(), p.probabilities.begin(), p.probabilities.end());
                       });
    return all;
  }
  EvaluationFigures evaluate() { return *run_->evaluate(data_)->plain; }
  const std::vector<double>& losses() const { return losses_; }
  TrainingRun& run() { return *run_; }
  /// Returns the visits of samples since the last call; empty on stages between the ends.
  std::vector<SampleVisit> take_visits() { return std::exchange(visits_, {}); }
  const Dataset& data() const { return *data_.train; }
  const ProcessGrid& grid() const { return grid_; }

 private:
  DataSplit make_data() {
    DataSplit data;
    data.train = std::make_shared<LabelledVectors>(22, &visits_);
    data.validation = std::make_shared<LabelledVectors>(40, &visits_);
    return data;
  }

  MPI_Comm comm_;
  VectorModel model_;
  std::vector<SampleVisit> visits_;
  DataSplit data_ = make_data();
  ProcessGrid grid_;
  ProgressThread progress_;
  std::unique_ptr<TrainingRun> run_;
  std::vector<double> losses_;
};

}  // namespace deltapipe::test
