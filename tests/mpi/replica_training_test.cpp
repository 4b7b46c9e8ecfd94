// SPDX-License-Identifier: BSD-3-Clause
// Training with compressed sums over replicas.
#include "small_run.hpp"

namespace deltapipe {
namespace {

using namespace test;

PipelineOptions options_of(int stages, int replicas, const ReplicaSettings& settings) {
  PipelineOptions options;
  options.pipeline.stages = stages;
  options.pipeline.replicas = replicas;
  options.pipeline.verify_replicas = 1;  // ends the run where replicas' weights differ
  options.seed = kSeed;
  options.micro_batch_size = 2;
  options.micro_batches = 2;
  options.replicas = settings;
  return options;
}

TEST_CASE("Replicas with compressed sums keep the same weights", "[replicas]") {
  const int ranks = world_size();
  const int replicas = GENERATE(2, 3, 4);
  if (ranks % replicas != 0) return;
  const int bits = GENERATE(0, 1, 2, 4, 8);
  const bool freezes = GENERATE(false, true);
  const bool sums_moments = GENERATE(false, true);
  const int stages_per_rank = GENERATE(1, 2);
  if (freezes && stages_per_rank > 1) return;
  if (sums_moments && bits == 0) return;
  ReplicaSettings settings{.codec = ReplicaCodec::bf16};
  if (bits > 0) settings = {.codec = ReplicaCodec::quantized, .bits = bits};
  if (sums_moments) {
    settings.codec = ReplicaCodec::adam_moment;
    settings.warmup_epochs = 1;
  }
  PipelineOptions options = options_of(ranks / replicas * stages_per_rank, replicas, settings);
  if (stages_per_rank > 1 && ranks == replicas) return;
  if (stages_per_rank > 1) interleave(options, stages_per_rank);
  OptimizerSettings optimizer = constant_rate();
  optimizer.learning_rate = 1e-3;
  CAPTURE(replicas, bits, sums_moments, freezes, stages_per_rank);
  double plain = 0;
  {
    PipelineOptions uncompressed = options;
    uncompressed.replicas = {};
    SmallRun run(uncompressed, freezes, true, optimizer);
    run.train(12);
    plain = run.losses().back();
  }
  SmallRun run(options, freezes, true, optimizer);
  const std::uint64_t before = run.trained_bytes();
  run.train(12);
  CHECK(run.losses().back() == Approx(plain).epsilon(0.05));
  CHECK(run.losses().back() != plain);
  CHECK(run.trained_bytes() > before);
}

TEST_CASE("A run with compressed sums continues from its state with the same bits",
          "[replicas][restart]") {
  const int ranks = world_size();
  if (ranks % 2 != 0) return;
  const double warmup_epochs = GENERATE(0.0, 1.0);
  const ReplicaCodec codec = GENERATE(ReplicaCodec::quantized, ReplicaCodec::adam_moment);
  if (codec == ReplicaCodec::adam_moment && warmup_epochs == 0) return;
  const PipelineOptions options =
      options_of(ranks / 2, 2, {.codec = codec, .bits = 2, .warmup_epochs = warmup_epochs});
  StateContent expected, middle;
  std::vector<double> losses;
  {
    SmallRun run(options);
    run.train(4);
    middle = state_in_memory(run.state());
    run.train(4);
    expected = state_in_memory(run.state());
    losses.assign(run.losses().begin() + 4, run.losses().end());
  }
  SmallRun run(options);
  MemoryStateReader reader(middle);
  read_state(run.state(), reader);
  run.train(4);
  CHECK(run.losses() == losses);
  check_same(state_in_memory(run.state()), expected);
}

TEST_CASE("A step says how large the errors of compressed sums are", "[replicas]") {
  const int ranks = world_size();
  if (ranks % 2 != 0) return;
  const auto error_of = [&](const ReplicaSettings& settings) {
    SmallRun run(options_of(ranks / 2, 2, settings));
    return run.run().step().replica_error;
  };
  CHECK(std::isnan(error_of({})));
  const double eight = error_of({.codec = ReplicaCodec::quantized, .bits = 8});
  const double two = error_of({.codec = ReplicaCodec::quantized, .bits = 2});
  CHECK((eight > 1e-4 && eight < 0.02));
  CHECK((two > 0.1 && two < 1));
}

}  // namespace
}  // namespace deltapipe
