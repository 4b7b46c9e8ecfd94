// SPDX-License-Identifier: BSD-3-Clause
// Another kind of data and task through the whole pipeline: vectors of different lengths with
// labels, augmented in each epoch.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "small_run.hpp"
#include "support/memory_state_reader.hpp"
#include "vector_run.hpp"

namespace deltapipe {
namespace {

using namespace test;

PipelineOptions options_of(int stages, const std::string& schedule = "1f1b") {
  PipelineOptions options;
  options.pipeline.stages = stages;
  options.pipeline.schedule = schedule;
  options.seed = 3;
  options.micro_batch_size = 2;
  options.micro_batches = 4;
  return options;
}

/// Losses of two epochs, then the loss and the metrics of an evaluation.
std::vector<double> results_of(VectorRun& run) {
  run.train_epochs(2);
  std::vector<double> all = run.losses();
  const EvaluationFigures figures = run.evaluate();
  all.push_back(figures.loss);
  for (const MetricValue& metric : figures.metrics) all.push_back(metric.value);
  return all;
}

TEST_CASE("Labelled vectors have the same bits in all numbers of stages and schedules",
          "[classification]") {
  std::vector<double> expected;
  {
    VectorRun alone(options_of(1), MPI_COMM_SELF);
    expected = results_of(alone);
  }
  for (const char* const schedule : {"gpipe", "1f1b", "zb-h1"})
    for (const bool recompute : {false, true}) {
      CAPTURE(schedule, recompute);
      PipelineOptions options = options_of(world_size(), schedule);
      options.recompute = recompute;
      VectorRun run(options);
      CHECK(results_of(run) == expected);
    }
  if (world_size() != 2) return;
  PipelineOptions options = options_of(4);
  interleave(options, 2);
  VectorRun run(options);
  CHECK(results_of(run) == expected);
}

TEST_CASE("Metrics have the names of the task and add over replicas", "[classification]") {
  if (world_size() % 2 != 0) return;
  EvaluationFigures expected;
  {
    VectorRun alone(options_of(1), MPI_COMM_SELF);
    expected = alone.evaluate();
  }
  PipelineOptions options = options_of(world_size() / 2);
  options.pipeline.replicas = 2;
  VectorRun run(options);
  const EvaluationFigures figures = run.evaluate();
  CHECK(figures.loss == Approx(expected.loss).epsilon(1e-6));
  REQUIRE(figures.metrics.size() == 4);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(figures.metrics[i].value == expected.metrics[i].value);  // of the same counts
  const std::vector<std::string> names = {"accuracy", "top5_accuracy", "f1", "matthews"};
  for (std::size_t i = 0; i < 4; ++i) CHECK(figures.metrics[i].metric->name == names[i]);
  CHECK(figures.metrics[1].value == 1);  // of three classes
}

TEST_CASE("Probabilities of classes come in the order of the samples", "[classification]") {
  std::vector<float> expected;
  EvaluationFigures figures;
  {
    VectorRun alone(options_of(1), MPI_COMM_SELF);
    expected = alone.predict();
    figures = alone.evaluate();
  }
  constexpr std::size_t samples = 40;
  REQUIRE(expected.size() == samples * kClasses);
  const LabelledVectors data(samples);
  double loss = 0, hits = 0;
  for (std::size_t id = 0; id < samples; ++id) {
    const auto p = std::span(expected).subspan(id * kClasses, kClasses);
    CHECK(p[0] + p[1] + p[2] == Approx(1).epsilon(1e-6));
    std::int32_t label = -1;
    SampleSpans fields;
    fields.set(Field::label, std::span(&label, 1));
    data.read(id, {}, fields);
    loss -= std::log(p[static_cast<std::size_t>(label)]) / samples;
    if (std::ranges::max_element(p) - p.begin() == label) hits += 1;
  }
  CHECK(loss == Approx(figures.loss).epsilon(1e-5));
  CHECK(hits / samples == figures.metrics.front().value);

  std::vector<PipelineOptions> layouts = {options_of(world_size())};
  if (world_size() % 2 == 0) {
    layouts.push_back(options_of(world_size() / 2));
    layouts.back().pipeline.replicas = 2;
  }
  if (world_size() == 3) {
    layouts.push_back(options_of(1));
    layouts.back().pipeline.replicas = 3;
  }
  for (const PipelineOptions& options : layouts) {
    VectorRun run(options);
    const std::vector<float> made = run.predict();
    REQUIRE(made.size() == (run.grid().rank() == 0 ? expected.size() : 0));
    // Replicas' micro-batches have other samples, and so may products' last bits.
    for (std::size_t i = 0; i < made.size(); ++i)
      CHECK(made[i] == (options.pipeline.replicas == 1 ? Approx(expected[i]).epsilon(0)
                                                       : Approx(expected[i]).epsilon(1e-5)));
  }
}

void use(PipelineOptions& options, CodecKind kind) {
  options.forward.kind = kind;
  options.forward.bits = 4;
  options.backward.kind = kind == CodecKind::topk ? CodecKind::topk : CodecKind::directq;
  options.backward.bits = 8;
  if (kind == CodecKind::topk) options.forward.topk = options.backward.topk = 0.5;
}

TEST_CASE("Labelled vectors are learned through codecs", "[classification]") {
  const CodecKind kind = GENERATE(CodecKind::none, CodecKind::aqsgd, CodecKind::topk);
  CAPTURE(static_cast<int>(kind));
  PipelineOptions options = options_of(world_size());
  use(options, kind);
  VectorRun run(options);
  const EvaluationFigures before = run.evaluate();
  run.train_epochs(25);
  const EvaluationFigures after = run.evaluate();
  CHECK(after.loss < before.loss / 2);
  CHECK(after.metrics.front().value > 0.9);
}

TEST_CASE("Padding of vectors is not sent", "[classification]") {
  if (world_size() == 1) return;
  VectorRun run(options_of(world_size()));
  const auto rows_of = [&](std::uint64_t step) {
    std::int64_t rows = 0;
    for (const std::uint64_t id : run.run().planner().samples(step, 0))
      rows += run.data().length(id);
    return rows;
  };
  const std::int64_t rows[] = {rows_of(0), rows_of(1)};
  REQUIRE(rows[0] != rows[1]);
  // Both steps have the same headers.
  const StepRecord first = run.run().step(), second = run.run().step();
  for (std::size_t b = 0; b < first.forward.bytes.size(); ++b)
    CHECK(static_cast<std::int64_t>(first.forward.bytes[b] - second.forward.bytes[b]) ==
          (rows[0] - rows[1]) * kWide * static_cast<std::int64_t>(sizeof(float)));
}

TEST_CASE("A run on labelled vectors continues from its state with the same bits",
          "[classification][restart]") {
  PipelineOptions options = options_of(world_size(), GENERATE("1f1b", "zb-h1"));
  use(options, GENERATE(CodecKind::none, CodecKind::aqsgd));
  constexpr int kBefore = 4, kAfter = 5;  // an epoch has three steps
  StateContent uninterrupted, middle;
  std::vector<double> losses;
  {
    VectorRun run(options);
    run.train(kBefore);
    middle = state_in_memory(run.run().state());
    run.train(kAfter);
    uninterrupted = state_in_memory(run.run().state());
    losses = run.losses();
  }
  VectorRun run(options);
  MemoryStateReader reader(middle);
  read_state(run.run().state(), reader);
  run.train(kAfter);
  CHECK(run.losses() == std::vector<double>(losses.begin() + kBefore, losses.end()));
  check_same(state_in_memory(run.run().state()), uninterrupted);
}

TEST_CASE("Augmentation depends on seed, epoch and sample only", "[classification]") {
  const LabelledVectors data(5);
  const auto values = [&](std::uint64_t id, const SampleVisit& visit) {
    std::vector<float> read(kRows * kWidth);
    SampleSpans fields;
    fields.set(Field::values, std::span(read));
    data.read(id, visit, fields);
    return read;
  };
  CHECK(values(1, {3, 0, true}) == values(1, {3, 0, true}));
  CHECK(values(1, {3, 0, true}) != values(1, {3, 1, true}));
  CHECK(values(1, {3, 0, false}) == values(1, {4, 9, false}));

  VectorRun run(options_of(world_size()));
  const bool reads = run.grid().first() || run.grid().last();
  run.train_epochs(1);
  for (const SampleVisit& visit : run.take_visits())
    CHECK((visit.seed == 3 && visit.epoch == 0 && visit.training));
  run.train_epochs(1);
  const std::vector<SampleVisit> visits = run.take_visits();
  CHECK(visits.size() == (reads ? run.data().size() : 0));
  for (const SampleVisit& visit : visits) CHECK((visit.epoch == 1 && visit.training));
  run.evaluate();
  for (const SampleVisit& visit : run.take_visits()) CHECK(!visit.training);
}

}  // namespace
}  // namespace deltapipe
