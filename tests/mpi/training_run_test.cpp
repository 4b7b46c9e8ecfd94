// SPDX-License-Identifier: BSD-3-Clause
// What a program sees of a training run: records, sums of its own, totals, divergence.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "small_run.hpp"
#include "support/device_values.hpp"

namespace deltapipe {
namespace {

using namespace test;

PipelineOptions options_of(int stages) {
  PipelineOptions options;
  options.pipeline.stages = stages;
  options.seed = kSeed;
  options.micro_batch_size = 2;
  options.micro_batches = 2;
  return options;
}

std::vector<std::vector<float>> values_of(SmallRun& run) {
  std::vector<std::vector<float>> values;
  const ParameterArena<float>& parameters = run.run().stages().front()->parameters();
  for (std::size_t i = 0; i < parameters.info().size(); ++i)
    values.push_back(to_host(parameters.value(static_cast<int>(i))));
  return values;
}

struct FirstStep {
  double gradient_norm = 0;
  double largest_change = 0;  ///< of this rank's parameters
};

FirstStep first_step(double clip_norm) {
  OptimizerSettings optimizer = constant_rate();
  optimizer.weight_decay = 0;
  optimizer.clip_norm = clip_norm;
  SmallRun run(options_of(world_size()), false, true, optimizer);
  const auto before = values_of(run);
  FirstStep first{.gradient_norm = run.run().step().gradient_norm};
  const auto after = values_of(run);
  for (std::size_t i = 0; i < before.size(); ++i)
    for (std::size_t j = 0; j < before[i].size(); ++j)
      first.largest_change =
          std::max(first.largest_change, std::abs(double(after[i][j]) - before[i][j]));
  return first;
}

TEST_CASE("Gradients are clipped to their norm", "[training]") {
  const FirstStep free = first_step(0), loose = first_step(1e6), tight = first_step(1e-12);
  CHECK(free.gradient_norm > 0);
  CHECK(tight.gradient_norm == free.gradient_norm);  // before clipping
  CHECK(free.largest_change == Approx(1e-2).epsilon(0.01));
  CHECK(loose.largest_change == free.largest_change);
  CHECK(tight.largest_change < 1e-4);  // far below AdamW's epsilon
}

TEST_CASE("An observer's notes are summed over ranks", "[training]") {
  SmallRun run(options_of(world_size()));
  std::vector<double> heard;
  std::uint64_t done = 0;
  StepObserver observer;
  observer.notes = [&] { return std::vector<double>{1, 0.5 * run.grid().rank()}; };
  observer.hear = [&](std::span<const double> sums) { heard.assign(sums.begin(), sums.end()); };
  observer.done = [&](const StepRecord& record) { done = record.step; };
  const StepRecord record = run.run().step(observer);
  const int ranks = world_size();
  CHECK(heard == std::vector<double>{double(ranks), 0.25 * ranks * (ranks - 1)});
  CHECK(done == 1);
  CHECK(record.step == 1);
  CHECK(run.run().totals().last_loss == record.loss);
  CHECK(run.run().totals().bytes == wire_bytes(record));
  CHECK((wire_bytes(record) > 0) == (ranks > 1));
}

TEST_CASE("An evaluation belongs to the steps before it", "[training]") {
  SmallRun run(options_of(world_size()));
  run.train(3);
  DataSplit data;
  data.validation = std::make_shared<TokenDataset>(run.data());
  const std::optional<EvaluationRecord> record = run.run().evaluate(data);
  REQUIRE(record);
  CHECK(record->step == 3);
  CHECK(record->epoch == Approx(3.0 / static_cast<double>(run.steps_per_epoch())));
  CHECK(record->tokens == data.validation->all_targets());
  CHECK(std::isfinite(record->plain->loss));
  CHECK_FALSE(record->codec);
  CHECK(run.run().totals().evaluated == 3);
  int asked = 0;
  CHECK_FALSE(run.run().evaluate(data, [&] { return ++asked == 2; }));
}

TEST_CASE("A run that diverges updates nothing", "[training]") {
  if (world_size() > 1) return;  // a boundary refuses the values first
  OptimizerSettings optimizer = constant_rate();
  optimizer.learning_rate = 1e30;
  SmallRun run(options_of(world_size()), false, true, optimizer);
  run.train(1);
  CHECK_THROWS_AS(run.train(1), Diverged);
  CHECK(run.run().totals().steps == 1);
}

}  // namespace
}  // namespace deltapipe
