// SPDX-License-Identifier: BSD-3-Clause
// Training with compressed sums over replicas, and with local steps.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "small_run.hpp"
#include "support/memory_state_reader.hpp"

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

/// A run that begins with the state after `before` steps has the same losses and the same state
/// after `more` steps.
void check_continues(const PipelineOptions& options, int before, int more) {
  StateContent expected, middle;
  std::vector<double> losses;
  {
    SmallRun run(options);
    run.train(before);
    middle = state_in_memory(run.state());
    run.train(more);
    expected = state_in_memory(run.state());
    losses.assign(run.losses().begin() + before, run.losses().end());
  }
  SmallRun run(options);
  MemoryStateReader reader(middle);
  read_state(run.state(), reader);
  run.train(more);
  CHECK(run.losses() == losses);
  check_same(state_in_memory(run.state()), expected);
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
  check_continues(options, 4, 4);
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

/// Values of the rank's parameters by name.
std::map<std::string, std::vector<float>> values_of(SmallRun& run) {
  std::map<std::string, std::vector<float>> values;
  const StateContent content = state_in_memory(run.state());
  for (const auto& part : content.parts) {
    if (!part.name.starts_with("parameters")) continue;
    for (const auto& item : part.items) {
      std::vector<float>& all = values[item.item.name];
      all.resize(item.bytes.size() / sizeof(float));
      std::memcpy(all.data(), item.bytes.data(), item.bytes.size());
    }
  }
  REQUIRE_FALSE(values.empty());
  return values;
}

TEST_CASE("An outer step is DiLoCo's", "[replicas][local]") {
  const int ranks = world_size();
  const int replicas = GENERATE(1, 2, 4);
  if (ranks % replicas != 0) return;
  const auto products = GENERATE(ProductPrecision::fp32, ProductPrecision::bf16);
  const double rate = 0.7, momentum = 0.9;
  const auto options = [&](int local_steps) {
    PipelineOptions made = options_of(
        ranks / replicas, replicas,
        {.local_steps = local_steps, .outer_learning_rate = rate, .outer_momentum = momentum});
    made.products = products;
    return made;
  };
  CAPTURE(replicas);
  std::map<std::string, std::vector<float>> before, local;
  {
    SmallRun run(options(1000));  // no outer step yet: what replicas do alone
    before = values_of(run);
    run.train(2);
    local = values_of(run);
  }
  std::map<std::string, std::vector<float>> after;
  {
    SmallRun run(options(2));
    run.train(2);
    after = values_of(run);
  }
  // Ranks of one stage are all replicas of it: pipeline ranks are neighbours.
  MPI_Comm stage = MPI_COMM_NULL;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split(MPI_COMM_WORLD, rank % (ranks / replicas), rank, &stage);
  for (const auto& [name, first] : before) {
    CAPTURE(name);
    std::vector<double> sums(local.at(name).begin(), local.at(name).end());
    MPI_Allreduce(MPI_IN_PLACE, sums.data(), static_cast<int>(sums.size()), MPI_DOUBLE, MPI_SUM,
                  stage);
    double worst = 0;  // not checked one by one: a rank that leaves would keep the others waiting
    for (std::size_t i = 0; i < first.size(); ++i) {
      const double change = first[i] - sums[i] / replicas;
      // The velocity is the change at the first outer step.
      const double expected = first[i] - rate * (change + momentum * change);
      worst = std::max(worst, std::abs(after.at(name)[i] - expected));
    }
    CHECK(worst < 1e-6);
  }
  MPI_Comm_free(&stage);
}

TEST_CASE("One local step of plain SGD and an outer step without momentum are a summed step",
          "[replicas][local]") {
  const int ranks = world_size();
  const int replicas = GENERATE(1, 2, 4);
  if (ranks % replicas != 0) return;
  OptimizerSettings sgd = constant_rate();
  sgd.name = OptimizerName::sgd;
  sgd.learning_rate = 0.1;
  sgd.momentum = 0;
  const auto losses_of = [&](const ReplicaSettings& settings) {
    SmallRun run(options_of(ranks / replicas, replicas, settings), false, true, sgd);
    run.train(8);
    return run.losses();
  };
  const std::vector<double> summed = losses_of({});
  const std::vector<double> local =
      losses_of({.local_steps = 1, .outer_learning_rate = 1, .outer_momentum = 0});
  // The last step of an epoch has fewer samples on some replicas; theirs then weigh more.
  for (std::size_t i = 0; i < 5; ++i) CHECK(local[i] == Approx(summed[i]).epsilon(1e-5));
  CHECK(local.back() == Approx(summed.back()).epsilon(0.02));
}

TEST_CASE("Replicas agree after outer steps, in every format", "[replicas][local]") {
  const int ranks = world_size();
  const int replicas = GENERATE(2, 3, 4);
  if (ranks % replicas != 0) return;
  const int bits = GENERATE(0, 1, 4, 8, 16, 32);
  const bool freezes = GENERATE(false, true);
  const int stages_per_rank = GENERATE(1, 2);
  if (stages_per_rank > 1 && (freezes || ranks == replicas)) return;
  ReplicaSettings settings{.codec = bits == 32   ? ReplicaCodec::none
                                    : bits == 16 ? ReplicaCodec::bf16
                                                 : ReplicaCodec::quantized,
                           .bits = bits == 0 ? 2 : std::min(bits, 8),
                           .warmup_epochs = bits == 0 ? 1.0 : 0.0,
                           .local_steps = 3};
  PipelineOptions options = options_of(ranks / replicas * stages_per_rank, replicas, settings);
  if (stages_per_rank > 1) interleave(options, stages_per_rank);
  OptimizerSettings optimizer = constant_rate();
  optimizer.learning_rate = 1e-3;
  CAPTURE(replicas, bits, freezes, stages_per_rank);
  SmallRun run(options, freezes, true, optimizer);
  std::vector<std::uint64_t> bytes;
  for (int step = 1; step <= 12; ++step) {  // verify_replicas ends the run where they differ
    const StepRecord record = run.run().step();
    CHECK(std::isfinite(record.loss));
    double sent = 0;
    for (const RankRecord& rank : record.ranks)
      sent += rank[static_cast<std::size_t>(RankValue::replica_bytes)];
    CHECK((sent > 0) == (step % 3 == 0));
    CHECK(run.run().replicas_agree(static_cast<std::uint64_t>(step)) == (step % 3 == 0));
  }
}

TEST_CASE("A run with local steps continues from its state with the same bits",
          "[replicas][local][restart]") {
  const int ranks = world_size();
  if (ranks % 2 != 0) return;
  const ReplicaCodec codec = GENERATE(ReplicaCodec::none, ReplicaCodec::quantized);
  const PipelineOptions options =
      options_of(ranks / 2, 2, {.codec = codec, .bits = 2, .local_steps = 2});
  check_continues(options, 4, 5);
}

}  // namespace
}  // namespace deltapipe
