// SPDX-License-Identifier: BSD-3-Clause
// A run whose state is written, and read back by everything built anew, goes on as if nothing had
// happened: the same bits of losses, parameters, moments and all memories. What the list of parts
// leaves out would show.
#include <catch2/catch.hpp>
#include <memory>
#include <numeric>

#include "app/training_state.hpp"
#include "core/base/state_in_memory.hpp"
#include "core/files/state_file.hpp"
#include "core/text/token_store.hpp"
#include "models/model.hpp"
#include "mpi_test.hpp"
#include "tests/unit/files_support.hpp"

namespace deltapipe {
namespace {

constexpr int kTokens = 6, kVocabulary = 19, kBlocks = 4;
constexpr std::uint64_t kSamples = 22, kSeed = 5;

/// Some samples are shorter than T.
TokenDataset dataset() {
  auto store = std::make_shared<TokenStore>(kVocabulary);
  std::vector<std::int32_t> tokens;
  std::uint32_t random = 3;
  for (std::uint64_t i = 0; i < kSamples * kTokens + 1; ++i) {
    random = random * 1664525u + 1013904223u;
    tokens.push_back(static_cast<std::int32_t>((random >> 12) % kVocabulary));
  }
  store->append(tokens);
  std::vector<TokenWindow> windows;
  for (std::uint64_t id = 0; id < kSamples; ++id)
    windows.push_back({id * kTokens, id % 5 == 4 ? 3 : kTokens});
  return {store, windows, kTokens, 0};
}

std::unique_ptr<Model> small_model() {
  NewModel shape;
  shape.blocks = kBlocks;
  shape.heads = 2;
  shape.channels = 16;
  shape.positions = kTokens;
  shape.vocabulary = kVocabulary;
  std::unique_ptr<Model> model = model_types().front().create(shape);
  model->set_dropout({0.1, 0.1, 0.1});
  return model;
}

PipelineOptions options_of(int stages, int replicas, bool spills, const std::string& directory) {
  PipelineOptions options;
  options.pipeline.stages = stages;
  options.pipeline.replicas = replicas;
  options.seed = kSeed;
  options.micro_batch_size = 2;
  options.micro_batches = 2;
  options.forward.kind = CodecKind::delta;
  options.forward.bits = 3;
  options.forward.first_visit = FirstVisit::refine;  // the first two visits differ from later ones
  options.forward.rounding = Rounding::stochastic;
  options.forward.prediction = Prediction::linear;
  options.forward.prediction_interval = 2;
  options.backward.kind = CodecKind::quantize;
  options.backward.bits = 4;
  options.backward.error_feedback = true;
  options.cache.storage = MemoryStorage::fp16;
  options.cache.budget_bytes = spills ? 1024 : 0;  // 5 records of 192 bytes
  options.cache.directory = directory;
  options.cache.verify_every = 1;
  return options;
}

/// One rank's part of a run, all of it built from nothing.
class Run {
 public:
  explicit Run(const PipelineOptions& options)
      : grid_(MPI_COMM_WORLD, options.pipeline.stages, options.pipeline.replicas),
        progress_(MPI_COMM_WORLD),
        model_(small_model()),
        data_(dataset()),
        planner_(data_, kSeed, true,
                 {options.micro_batch_size, options.micro_batches, options.pipeline.replicas}) {
    stage_ = model_->make_stage(stage_part(
        balanced_partition(kBlocks, grid_.stages(), model_->cost(kTokens)), grid_.stage()));
    stage_->parameters().allocate(true);
    model_->initialise(kSeed, stage_->parameters());
    PipelineShape shape = pipeline_shape(options, kVocabulary, kTokens, true);
    shape.train_samples = data_.size();
    shape.data_fingerprint = data_.fingerprint();
    pipeline_ = std::make_unique<Pipeline>(options, shape, grid_, progress_, *stage_);
    optimizer_ = std::make_unique<Optimizer<float>>(settings_, stage_->parameters());
    totals_.seed = kSeed;
    totals_.data_fingerprint = shape.data_fingerprint;
    totals_.stages.resize(grid_.stages());
  }
  ~Run() { barrier(progress_, MPI_COMM_WORLD); }

  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      const std::uint64_t step = totals_.steps;
      const StepPlan plan = planner_.plan(step, grid_.replica());
      for (std::uint64_t later = step; later < step + 2; ++later)
        if (later == step + 1 || i == 0)
          pipeline_->prefetch(planner_.samples(later, grid_.replica()));
      pipeline_->train_step(data_, plan, false, [&] {
        losses_.push_back(pipeline_->loss_sum());
        optimizer_->update(pipeline_->exec(), step, 1e-2, 1.0);
        pipeline_->exec().fence();
      });
      ++totals_.steps;
    }
  }

  std::vector<StatePart> state() { return training_state(*pipeline_, *optimizer_, totals_); }
  const std::vector<double>& losses() const { return losses_; }
  std::uint64_t steps_per_epoch() const { return planner_.steps_per_epoch(); }
  std::string file_in(const std::string& directory) const {
    return directory + "/rank" + std::to_string(grid_.rank()) + ".h5";
  }

 private:
  ProcessGrid grid_;
  ProgressThread progress_;
  std::unique_ptr<Model> model_;
  TokenDataset data_;
  StepPlanner planner_;
  OptimizerSettings settings_;
  RunTotals totals_;
  std::unique_ptr<Stage<float>> stage_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Optimizer<float>> optimizer_;
  std::vector<double> losses_;
};

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

TEST_CASE("A run goes on from its written state with the same bits", "[restart]") {
  const int ranks = world_size();
  const int replicas = GENERATE(1, 2);
  if (ranks % replicas != 0) return;
  const bool spills = GENERATE(false, true);
  const int stages = ranks / replicas;
  CAPTURE(stages, replicas, spills);
  const testing::TemporaryDirectory directory;
  const PipelineOptions options = options_of(stages, replicas, spills, directory.path());
  StateContent uninterrupted;
  std::vector<double> losses;
  int before = 0, after = 0;
  {
    Run run(options);
    // In the middle of the second epoch: samples have been visited once or twice.
    before = static_cast<int>(run.steps_per_epoch() + run.steps_per_epoch() / 2);
    after = static_cast<int>(run.steps_per_epoch()) + 1;
    run.train(before + after);
    uninterrupted = state_in_memory(run.state());
    losses = run.losses();
  }
  std::vector<double> resumed;
  {
    Run run(options);
    run.train(before);
    StateFileWriter writer(run.file_in(directory.path()));
    write_state(run.state(), writer);
    writer.close();
    resumed = run.losses();
  }
  Run run(options);
  StateFileReader reader(run.file_in(directory.path()));
  read_state(run.state(), reader);
  run.train(after);
  resumed.insert(resumed.end(), run.losses().begin(), run.losses().end());
  CHECK(resumed == losses);
  const StateContent end = state_in_memory(run.state());
  REQUIRE(end.parts.size() == uninterrupted.parts.size());
  for (std::size_t i = 0; i < end.parts.size(); ++i) {
    INFO(end.parts[i].name);
    REQUIRE(end.parts[i].items.size() == uninterrupted.parts[i].items.size());
    for (std::size_t j = 0; j < end.parts[i].items.size(); ++j) {
      INFO(end.parts[i].items[j].item.name);
      CHECK((end.parts[i].items[j] == uninterrupted.parts[i].items[j]));
    }
  }
}

TEST_CASE("A rank's list of state names all that it keeps", "[restart]") {
  const int stages = world_size();
  const testing::TemporaryDirectory directory;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  Run run(options_of(stages, 1, false, directory.path()));
  std::vector<std::string> names;
  for (const StatePart& part : run.state()) names.push_back(part.name);
  std::vector<std::string> expected = {"parameters"};
  const auto boundary = [&](int i, const char* end) {
    expected.push_back("boundary " + std::to_string(i) + " " + end);
  };
  if (rank + 1 < stages) boundary(rank, "forward sender");
  if (rank > 0) boundary(rank - 1, "forward receiver");
  if (rank > 0) boundary(rank - 1, "backward sender");  // its errors are the sender's alone
  if (stages > 1 && rank + 1 == stages) expected.emplace_back("token rows sender");
  if (stages > 1 && rank == 0) expected.emplace_back("token rows receiver");
  expected.push_back("moments");
  expected.push_back("run");
  CHECK(names == expected);
}

}  // namespace
}  // namespace deltapipe
