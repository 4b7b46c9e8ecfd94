// SPDX-License-Identifier: BSD-3-Clause
// Trains a new, small GPT-2 to continue a text, as a pipeline over all ranks (mpirun -n 2) with
// AQ-SGD at the boundaries and with gradients clipped to a norm of 1.
#include <cstdio>
#include <deltapipe/app/training/training.hpp>
#include <deltapipe/comm/transport/mpi_session.hpp>
#include <deltapipe/core/data/token_store.hpp>
#include <deltapipe/models/model.hpp>
#include <deltapipe/models/partition.hpp>
#include <memory>
#include <utility>
#include <vector>

using namespace deltapipe;

constexpr int kBlocks = 4, kTokens = 16, kVocabulary = 27;
constexpr std::uint64_t kSteps = 60, kSeed = 1;

/// Windows of a text in which every letter follows from the one before it.
TokenDataset alphabet(int samples) {
  const auto store = std::make_shared<TokenStore>(kVocabulary);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i <= samples * kTokens; ++i) tokens.push_back(i * 5 % kVocabulary);
  store->append(tokens);
  std::vector<TokenWindow> windows;
  for (int i = 0; i < samples; ++i)
    windows.push_back({static_cast<std::uint64_t>(i) * kTokens, kTokens});
  return {store, windows, kTokens, 0};
}

int main(int argc, char** argv) {
  const MpiSession mpi(&argc, &argv);
  const Kokkos::ScopeGuard kokkos(argc, argv);

  NewModel shape;
  shape.blocks = kBlocks;
  shape.heads = 2;
  shape.channels = 32;
  shape.positions = kTokens;
  shape.vocabulary = kVocabulary;
  const std::unique_ptr<Model> model = model_types().front().create(shape);
  DataSplit data;
  data.train = std::make_shared<TokenDataset>(alphabet(32));
  data.validation = std::make_shared<TokenDataset>(alphabet(8));

  TrainingPlan plan;
  plan.pipeline.pipeline.stages = mpi.size();
  plan.pipeline.forward.kind = CodecKind::aqsgd;
  plan.pipeline.forward.bits = 4;
  plan.pipeline.micro_batch_size = 4;
  plan.pipeline.micro_batches = 2;
  plan.pipeline.seed = kSeed;
  plan.optimizer.learning_rate = 1e-2;
  plan.optimizer.clip_norm = 1;
  const std::vector<int> partition = balanced_partition(kBlocks, mpi.size(), model->cost(kTokens));
  plan.shape = pipeline_shape(plan.pipeline, *model, partition, *data.train);
  plan.shape.steps = kSteps;

  const ProcessGrid grid(MPI_COMM_WORLD, mpi.size(), 1);
  ProgressThread progress(grid.world());  // makes all MPI calls
  Stages stages = make_stages(*model, partition, grid, true);
  for (const auto& stage : stages) model->initialise(kSeed, stage->parameters());
  TrainingRun run(plan, *model, std::move(stages), *data.train, grid, progress);
  while (run.totals().steps < run.steps()) {
    const StepRecord step = run.step();
    if (grid.rank() == 0 && step.step % 10 == 0)
      std::printf("step %llu: loss %.4f, gradient norm %.3f, %llu bytes\n",
                  static_cast<unsigned long long>(step.step), step.loss, step.gradient_norm,
                  static_cast<unsigned long long>(wire_bytes(step)));
  }
  const double loss = run.evaluate(data)->plain->loss;
  if (grid.rank() == 0) std::printf("validation loss %.4f\n", loss);
  return 0;
}
