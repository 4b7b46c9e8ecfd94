// SPDX-License-Identifier: BSD-3-Clause
// Two stages on each rank: what is computed is that of one stage each, to the bit.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "comm/pipeline/pipeline.hpp"
#include "small_run.hpp"
#include "tests/unit/core/files/files_support.hpp"

namespace deltapipe::test {
namespace {

PipelineOptions options_of(int stages, int replicas, int micro_batches) {
  PipelineOptions options;
  options.pipeline.stages = stages;
  options.pipeline.replicas = replicas;
  options.seed = kSeed;
  options.micro_batch_size = 2;
  options.micro_batches = micro_batches;
  return options;
}

/// 0: the world has too few ranks, or the model too few blocks.
int interleaved_stages(int replicas) {
  const int pipeline_ranks = world_size() / replicas;
  if (world_size() % replicas != 0 || pipeline_ranks < 2 || 2 * pipeline_ranks > kBlocks) return 0;
  return 2 * pipeline_ranks;
}

/// Loss of the last stage, which is on the same rank in both.
std::vector<double> losses_of(const PipelineOptions& options, bool freezes) {
  SmallRun run(options, freezes);
  run.train(static_cast<int>(run.steps_per_epoch()) + 2);  // the last step of an epoch is smaller
  std::vector<double> losses = run.losses();
  losses.push_back(run.evaluate(EvaluationMode::plain, true));
  losses.push_back(run.evaluate(EvaluationMode::plain, false));
  return losses;
}

TEST_CASE("Two stages on a rank learn as one does", "[interleaved]") {
  const int replicas = GENERATE(1, 2);
  const int stages = interleaved_stages(replicas);
  if (stages == 0) return;
  const int micro_batches = GENERATE(1, 2, 3, 5);
  const int in_flight = GENERATE(1, 2);
  const bool freezes = GENERATE(false, true);
  CAPTURE(stages, replicas, micro_batches, in_flight, freezes);
  const std::vector<double> losses =
      losses_of(options_of(stages / 2, replicas, micro_batches), freezes);
  PipelineOptions options = options_of(stages, replicas, micro_batches);
  options.pipeline.in_flight = in_flight;
  interleave(options, 2);
  CHECK(losses_of(options, freezes) == losses);
}

TEST_CASE("Each boundary of a rank spills records to its own file", "[interleaved]") {
  const int stages = interleaved_stages(1);
  if (stages == 0) return;
  const testing::TemporaryDirectory directory;
  PipelineOptions options = options_of(stages, 1, 2);
  interleave(options, 2);
  options.forward.kind = CodecKind::aqsgd;
  options.forward.bits = 3;
  options.cache.verify_every = 1;
  std::vector<double> in_memory;
  {
    SmallRun run(options);
    run.train(static_cast<int>(2 * run.steps_per_epoch()));
    in_memory = run.losses();
  }
  options.cache.budget_bytes = 1024;  // 5 records
  options.cache.directory = directory.path();
  SmallRun run(options);
  run.train(static_cast<int>(2 * run.steps_per_epoch()));
  CHECK(run.losses() == in_memory);
}

}  // namespace
}  // namespace deltapipe::test
