// SPDX-License-Identifier: BSD-3-Clause
// A run whose state is written, and read back by newly built objects, has the bits of a run without
// a restart: losses, parameters, moments and all memories. The test fails if the list of parts
// lacks one.
#include <catch2/catch.hpp>

#include "core/base/error.hpp"
#include "core/files/state_file.hpp"
#include "small_run.hpp"
#include "support/memory_state_reader.hpp"
#include "tests/unit/core/files/files_support.hpp"

namespace deltapipe {
namespace {

using namespace test;

/// Steps that follow from all messages so far, one direction's by bits, the other's by errors.
void hold_targets(PipelineOptions& options) {
  options.forward.rms_step = options.backward.rms_step = 1;
  options.forward.entropy_coding = options.backward.entropy_coding = true;
  options.forward.scale = ScaleKind::message;
  options.forward.first_visit = FirstVisit::steps;
  options.backward.error_feedback = false;  // a part of the state for the controller alone
  options.forward_rate.target_bits = {11};
  options.backward_rate.target_error = 0.2;
}

PipelineOptions options_of(int stages, int replicas, bool spills, const std::string& directory) {
  PipelineOptions options;
  options.pipeline.stages = stages;
  options.pipeline.replicas = replicas;
  options.seed = kSeed;
  options.micro_batch_size = 2;
  options.micro_batches = 2;
  options.forward.kind = CodecKind::aqsgd;
  options.forward.bits = 3;
  options.forward.first_visit = FirstVisit::quantize8;
  options.forward.rounding = Rounding::stochastic;
  options.backward.kind = CodecKind::directq;
  options.backward.bits = 4;
  options.backward.error_feedback = true;
  options.cache.storage = MemoryStorage::fp16;
  options.cache.budget_bytes = spills ? 1024 : 0;  // 5 records of 192 bytes
  options.cache.directory = directory;
  options.cache.verify_every = 1;
  return options;
}

TEST_CASE("A run resumes from its written state with the same bits", "[restart]") {
  const int ranks = world_size();
  const int replicas = GENERATE(1, 2);
  if (ranks % replicas != 0) return;
  const bool spills = GENERATE(false, true);
  const bool freezes = GENERATE(false, true);
  const bool holds_targets = GENERATE(false, true);
  if (spills + freezes + holds_targets > 1) return;
  const int stages_per_rank = GENERATE(1, 2);
  const int stages = ranks / replicas * stages_per_rank;
  if (stages_per_rank > 1 && (ranks == replicas || stages > kBlocks)) return;
  CAPTURE(stages, stages_per_rank, replicas, spills, freezes, holds_targets);
  const testing::TemporaryDirectory directory;
  PipelineOptions options = options_of(stages, replicas, spills, directory.path());
  if (stages_per_rank > 1) interleave(options, stages_per_rank);
  if (holds_targets) hold_targets(options);
  StateContent uninterrupted;
  std::vector<double> losses;
  int before = 0, after = 0;
  {
    SmallRun run(options, freezes);
    // In the middle of the second epoch: samples have been visited once or twice.
    before = static_cast<int>(run.steps_per_epoch() + run.steps_per_epoch() / 2);
    after = static_cast<int>(run.steps_per_epoch()) + 1;
    run.train(before + after);
    uninterrupted = state_in_memory(run.state());
    losses = run.losses();
  }
  std::vector<double> resumed;
  {
    SmallRun run(options, freezes);
    run.train(before);
    StateFileWriter writer(run.file_in(directory.path()));
    write_state(run.state(), writer);
    writer.close();
    resumed = run.losses();
  }
  SmallRun run(options, freezes);
  StateFileReader reader(run.file_in(directory.path()));
  read_state(run.state(), reader);
  run.train(after);
  resumed.insert(resumed.end(), run.losses().begin(), run.losses().end());
  CHECK(resumed == losses);
  const StateContent end = state_in_memory(run.state());
  check_same(end, uninterrupted);
}

TEST_CASE("A state of a run that froze other parameters is refused", "[restart][frozen]") {
  const testing::TemporaryDirectory directory;
  const PipelineOptions options = options_of(world_size(), 1, false, directory.path());
  const bool froze = GENERATE(false, true);
  StateContent content;
  {
    SmallRun run(options, froze);
    run.train(1);
    content = state_in_memory(run.state());
  }
  SmallRun run(options, !froze);
  MemoryStateReader reader(content);
  int refused = 0;
  try {
    read_state(run.state(), reader);
  } catch (const UserError&) {
    refused = 1;
  }
  int some = 0;  // a stage may have nothing that is frozen
  MPI_Allreduce(&refused, &some, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  CHECK(some == 1);
}

TEST_CASE("A rank's list of state names all that it keeps", "[restart]") {
  const int stages = world_size();
  const testing::TemporaryDirectory directory;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  SmallRun run(options_of(stages, 1, false, directory.path()));
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
