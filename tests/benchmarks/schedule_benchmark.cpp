// SPDX-License-Identifier: BSD-3-Clause
// How long ranks wait by each schedule, against what the simulator says: the product's pipeline,
// messages and all, over stages that sleep for as long as passes would take, so that ranks do not
// share cores.
//
//   mpirun -n 4 --oversubscribe --bind-to none schedule_benchmark [micro-batches [forward ms
//       [latency ms]]]
//
// The milliseconds are those of a rank's share of the model, in one stage or several; a backward
// pass takes twice as long, half of it for gradients of parameters. Medians of the steps.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/benchmark_support.hpp"
#include "comm/pipeline/pipeline.hpp"
#include "comm/schedule/simulation.hpp"
#include "comm/transport/collectives.hpp"
#include "comm/transport/mpi_session.hpp"
#include "core/data/token_store.hpp"

using namespace deltapipe;

namespace {

constexpr int kTokens = 8, kChannels = 16, kSteps = 6;

struct Load {
  int micro_batches = 8;
  double forward_seconds = 0.06;
  double latency_seconds = 0;
};

struct Case {
  const char* schedule;
  int stages_per_rank = 1;
  int in_flight = 1;
};

/// Takes its time and leaves zeros.
class SleepingStage final : public Stage<float> {
 public:
  explicit SleepingStage(double forward_seconds) : forward_(forward_seconds) {
    parameters_.add("w", {1}, false, 0);
  }

  ParameterArena<float>& parameters() override { return parameters_; }
  BoundaryShape input_shape(int) const override { return {kTokens, kChannels}; }
  BoundaryShape output_shape(int) const override { return {kTokens, kChannels}; }
  MemoryLedger memory(const StageCapacity&) const override { return {}; }
  void reserve(const StageCapacity& capacity) override {
    for (int slot = 0; slot < capacity.slots; ++slot) {
      inputs_.emplace_back("deltapipe::SleepingStage::input", capacity.samples * kTokens,
                           kChannels);
      outputs_.emplace_back("deltapipe::SleepingStage::output", capacity.samples * kTokens,
                            kChannels);
    }
    gradient_ =
        Matrix<float>("deltapipe::SleepingStage::gradient", capacity.samples * kTokens, kChannels);
    loss_ = Vector<float>("deltapipe::SleepingStage::loss", capacity.samples * kTokens);
  }
  MatrixRef<float> input(int slot, int rows) override { return part(inputs_[slot], rows); }
  MatrixRef<float> output(int slot, int rows) override { return part(outputs_[slot], rows); }
  MatrixRef<float> output_gradient(int, int rows) override { return part(gradient_, rows); }
  MatrixRef<float> input_gradient(int, int rows) override { return part(gradient_, rows); }

  void forward(const ExecSpace&, const MicroBatch&, int, bool, bool) override { sleep(forward_); }
  void backward(const ExecSpace&, const MicroBatch&, int, bool,
                const BucketFinal& bucket_final) override {
    sleep(2 * forward_);
    finish_buckets(bucket_final, 1, 0);
  }
  void backward_inputs(const ExecSpace&, const MicroBatch&, int, bool) override { sleep(forward_); }
  void backward_parameters(const ExecSpace&, const MicroBatch&, int, bool,
                           const BucketFinal& bucket_final) override {
    sleep(forward_);
    finish_buckets(bucket_final, 1, 0);
  }
  VectorRef<const float> scores(int, int rows) override {
    return VectorRef<const float>(loss_.data(), rows);
  }
  VectorRef<const float> logits(const ExecSpace&, int, int) override { return {}; }

 private:
  static MatrixRef<float> part(const Matrix<float>& all, int rows) {
    return MatrixRef<float>(all.data(), rows, kChannels);
  }
  static void sleep(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }

  double forward_;
  ParameterArena<float> parameters_;
  std::vector<Matrix<float>> inputs_, outputs_;
  Matrix<float> gradient_;
  Vector<float> loss_;
};

TokenDataset samples(int count) {
  auto store = std::make_shared<TokenStore>(10);
  store->append(std::vector<std::int32_t>(kTokens + 1, 1));
  return {store, std::vector<TokenWindow>(static_cast<std::size_t>(count), {0, kTokens}), kTokens,
          0};
}

/// Median seconds of a step, from when all ranks begin to when the last one ends.
double measure(const Case& c, const Load& load, int ranks) {
  PipelineOptions options;
  options.pipeline.stages = ranks * c.stages_per_rank;
  options.pipeline.stages_per_rank = c.stages_per_rank;
  options.pipeline.schedule = c.schedule;
  options.pipeline.in_flight = c.in_flight;
  options.network.forward = options.network.backward = {{0, load.latency_seconds}};
  options.micro_batches = load.micro_batches;
  const ProcessGrid grid(MPI_COMM_WORLD, options.pipeline.stages, 1, c.stages_per_rank);
  ProgressThread progress(grid.world());
  std::vector<std::unique_ptr<SleepingStage>> own;
  std::vector<Stage<float>*> stages;
  for (int local = 0; local < c.stages_per_rank; ++local) {
    own.push_back(std::make_unique<SleepingStage>(load.forward_seconds / c.stages_per_rank));
    own.back()->parameters().allocate(true);
    stages.push_back(own.back().get());
  }
  const TokenDataset data = samples(load.micro_batches);
  PipelineShape shape = pipeline_shape(options, 10, kTokens, true);
  shape.train_samples = data.size();
  Pipeline pipeline(options, shape, grid, progress, stages);
  const StepPlanner planner(data, 0, false, {1, load.micro_batches, 1});
  std::vector<double> seconds;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const StepPlan plan = planner.plan(step, 0);
    barrier(progress, grid.world());
    const double begin = benchmark::wall_seconds();
    pipeline.train_step(data, plan, false, [] {});
    std::vector<double> all(1, benchmark::wall_seconds() - begin);
    all_reduce(progress, grid.world(), all, Reduction::max);
    if (step > 0) seconds.push_back(all.front());
  }
  barrier(progress, grid.world());
  return benchmark::median(seconds);
}

double simulated(const Case& c, const Load& load, int ranks) {
  std::vector<Program> programs;
  int buffers = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<ScheduleShape> stages;
    for (int local = 0; local < c.stages_per_rank; ++local) {
      ScheduleShape shape{rank + local * ranks, ranks * c.stages_per_rank, load.micro_batches,
                          c.in_flight};
      shape.stages_per_rank = c.stages_per_rank;
      stages.push_back(shape);
    }
    programs.push_back(training_program(find_schedule(c.schedule), stages));
    buffers = message_buffers(find_schedule(c.schedule), stages.front());
  }
  SimulationCosts costs;
  const double forward = load.forward_seconds / c.stages_per_rank;
  costs.stages = {{forward, 2 * forward}};
  costs.activations = costs.gradients = {{0, load.latency_seconds}};
  costs.buffers = buffers;
  return simulate(programs, costs).makespan();
}

void run(const Load& load) {
  int ranks = 1, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<Case> cases = {{"gpipe"}, {"1f1b"}, {"zb-h1"}};
  if (ranks > 1) cases.insert(cases.end(), {{"interleaved", 2}, {"interleaved", 4}});
  if (load.latency_seconds > 0)
    cases.insert(cases.end(), {{"1f1b", 1, 2}, {"zb-h1", 1, 2}, {"interleaved", 2, 2}});
  if (rank == 0)
    std::printf(
        "%d ranks, %d micro-batches, %g ms forward and %g ms backward on each, latency %g ms\n"
        "%-12s %13s %9s %9s %10s %12s %13s\n",
        ranks, load.micro_batches, 1e3 * load.forward_seconds, 2e3 * load.forward_seconds,
        1e3 * load.latency_seconds, "schedule", "stages a rank", "in flight", "step, s",
        "simulated", "ranks wait", "simulated");
  for (const Case& c : cases) {
    const double measured = measure(c, load, ranks), expected = simulated(c, load, ranks);
    const double work = 3 * load.forward_seconds * load.micro_batches;
    if (rank == 0)
      std::printf("%-12s %13d %9d %9.4f %10.4f %10.2f %% %11.2f %%\n", c.schedule,
                  c.stages_per_rank, c.in_flight, measured, expected, 100 * (1 - work / measured),
                  100 * (1 - work / expected));
  }
  if (rank == 0) std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const MpiSession mpi(&argc, &argv);
  const Kokkos::ScopeGuard kokkos(argc, argv);
  Load load;
  if (argc > 1) load.micro_batches = std::atoi(argv[1]);
  if (argc > 2) load.forward_seconds = 1e-3 * std::atof(argv[2]);
  if (argc > 3) load.latency_seconds = 1e-3 * std::atof(argv[3]);
  if (argc > 4 || load.micro_batches < 1 || !(load.forward_seconds > 0) ||
      !(load.latency_seconds >= 0)) {
    std::fprintf(stderr, "usage: %s [micro-batches [forward ms [latency ms]]]\n", argv[0]);
    return 2;
  }
  run(load);
  return 0;
}
