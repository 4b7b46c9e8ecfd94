// SPDX-License-Identifier: BSD-3-Clause
// The pipeline with stages that can be worked out by hand. Every schedule gives their losses and
// gradients, holds each micro-batch's slot, and takes what crosses from the stages, whose tokens
// and channels differ from boundary to boundary.
#include "comm/pipeline/pipeline.hpp"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <limits>

#include "comm/transport/agree.hpp"
#include "core/base/error.hpp"
#include "core/data/token_store.hpp"
#include "mpi_test.hpp"
#include "support/denormals.hpp"

namespace deltapipe {
namespace {

using Catch::Matchers::Contains;

constexpr int kTokens = 4, kChannels = 3, kSamplesAtOnce = 2;
constexpr std::uint64_t kSamples = 16;

float weight_of(int stage) {
  return static_cast<float>(stage + 2);
}

/// Sum over a sample's tokens and channels of the first stage's x.
KOKKOS_FUNCTION float sum_of_input(std::uint64_t id) {
  float sum = 0;
  for (int t = 0; t < kTokens; ++t)
    for (int c = 0; c < kChannels; ++c) sum += static_cast<float>(id) + t + c;
  return sum;
}

#if defined(__SSE__) || defined(__aarch64__)
constexpr bool kFlushes = true;
#else
constexpr bool kFlushes = false;
#endif

enum class Gradients { separate, one_memory };

/// The sum s of a sample's input becomes w s, spread evenly over its output; the last stage's loss
/// is that output, spread over T rows.
class SumStage final : public Stage<float> {
 public:
  struct Ends {
    BoundaryShape input, output;
  };

  SumStage(int stage, int stages, const Ends& ends, Gradients gradients)
      : first_(stage == 0), last_(stage + 1 == stages), ends_(ends), gradients_(gradients) {
    parameters_.add("w", {1}, false, 0);
    weight_ = weight_of(stage);
  }

  ParameterArena<float>& parameters() override { return parameters_; }
  TokenEmbedding<float>* token_embedding() override { return embedding_; }
  void set_token_embedding(TokenEmbedding<float>* embedding) { embedding_ = embedding; }
  BoundaryShape input_shape(int) const override { return ends_.input; }
  BoundaryShape output_shape(int) const override { return ends_.output; }
  MemoryLedger memory(const StageCapacity&) const override { return {}; }
  void reserve(const StageCapacity& capacity) override {
    Kokkos::deep_copy(parameters_.value(0), weight_);
    samples_ = capacity.samples;
    const auto values = [&](const BoundaryShape& shape) {
      return Vector<float>("deltapipe::Test::values", samples_ * shape.tokens * shape.channels);
    };
    Vector<float> all("deltapipe::Test::gradients",
                      samples_ * std::max(ends_.input.tokens * ends_.input.channels,
                                          ends_.output.tokens * ends_.output.channels));
    for (int slot = 0; slot < capacity.slots; ++slot) {
      const bool shared = gradients_ == Gradients::one_memory;
      slots_.push_back({values(ends_.input), values(ends_.output),
                        shared ? all : values(ends_.input), shared ? all : values(ends_.output)});
    }
    mean_gradient_B_ = Vector<float>("deltapipe::Test::meanGradient", samples_);
    loss_ = Vector<float>("deltapipe::Test::loss", samples_ * kTokens * capacity.micro_batches);
  }

  MatrixRef<float> input(int slot, int rows) override {
    return matrix(slots_[slot].x, rows, ends_.input);
  }
  MatrixRef<float> output(int slot, int rows) override {
    return matrix(slots_[slot].y, rows, ends_.output);
  }
  MatrixRef<float> output_gradient(int slot, int rows) override {
    return matrix(slots_[slot].dy, rows, ends_.output);
  }
  MatrixRef<float> input_gradient(int slot, int rows) override {
    return matrix(slots_[slot].dx, rows, ends_.input);
  }

  void forward(const ExecSpace& exec, const MicroBatch& batch, int slot, bool training,
               bool) override {
    Slot& s = slots_[slot];
    CHECK(test::denormals_vanish() == kFlushes);
    CHECK(s.micro_batch == -1);
    if (training) s.micro_batch = batch.index;
    // By the contract no gradient is of use while a forward pass runs.
    Kokkos::deep_copy(exec, s.dx, std::numeric_limits<float>::quiet_NaN());
    Kokkos::deep_copy(exec, s.dy, std::numeric_limits<float>::quiet_NaN());
    const Vector<float> x = s.x, y = s.y;
    const auto ids = batch.sample_id_B;
    const auto w = parameters_.value(0);
    const auto loss = losses_of(batch.index, batch.rows());
    const int inputs = ends_.input.tokens * ends_.input.channels;
    const int outputs = last_ ? 0 : ends_.output.tokens * ends_.output.channels;
    const bool first = first_;
    Kokkos::parallel_for(
        "deltapipe::Test::forward", Kokkos::RangePolicy<ExecSpace>(exec, 0, batch.samples),
        DELTAPIPE_LAMBDA(int b) {
          float sum = first ? sum_of_input(ids(b)) : 0;
          if (!first)
            for (int i = 0; i < inputs; ++i) sum += x(b * inputs + i);
          for (int i = 0; i < outputs; ++i) y(b * outputs + i) = w(0) * sum / outputs;
          for (int t = 0; t < kTokens; ++t) loss(b * kTokens + t) = w(0) * sum / kTokens;
        });
  }

  void backward(const ExecSpace& exec, const MicroBatch& batch, int slot, bool accumulate,
                const BucketFinal& bucket_final) override {
    Slot& s = slots_[slot];
    CHECK(test::denormals_vanish() == kFlushes);
    CHECK(s.micro_batch == batch.index);
    s.micro_batch = -1;
    const Vector<float> x = s.x, dx = s.dx, dy = s.dy, mean = mean_gradient_B_;
    const auto ids = batch.sample_id_B;
    const auto w = parameters_.value(0), dw = parameters_.gradient(0);
    const int inputs = ends_.input.tokens * ends_.input.channels;
    const int outputs = ends_.output.tokens * ends_.output.channels;
    const bool first = first_, last = last_;
    const auto scale = static_cast<float>(batch.loss_scale);
    const int samples = batch.samples;
    Kokkos::parallel_for(
        "deltapipe::Test::backward", Kokkos::RangePolicy<ExecSpace>(exec, 0, 1),
        DELTAPIPE_LAMBDA(int) {
          if (!accumulate) dw(0) = 0;
          for (int b = 0; b < samples; ++b) {
            mean(b) = last ? scale : 0;
            float sum = first ? sum_of_input(ids(b)) : 0;
            if (!last)
              for (int i = 0; i < outputs; ++i) mean(b) += dy(b * outputs + i) / outputs;
            if (!first)
              for (int i = 0; i < inputs; ++i) sum += x(b * inputs + i);
            dw(0) += mean(b) * sum;
          }
          if (first) return;
          for (int b = 0; b < samples; ++b)
            for (int i = 0; i < inputs; ++i) dx(b * inputs + i) = mean(b) * w(0);
        });
    if (bucket_final) bucket_final(0);
    ++backward_passes;
  }

  VectorRef<const float> scores(int micro_batch, int rows) override {
    return losses_of(micro_batch, rows);
  }
  VectorRef<const float> logits(const ExecSpace&, int, int) override { return {}; }

  float gradient() const {
    float value = 0;
    Kokkos::deep_copy(Kokkos::View<float*, Kokkos::HostSpace>(&value, 1), parameters_.gradient(0));
    return value;
  }
  int backward_passes = 0;

 private:
  struct Slot {
    Vector<float> x, y, dx, dy;
    int micro_batch = -1;
  };
  MatrixRef<float> matrix(const Vector<float>& all, int rows, const BoundaryShape& shape) const {
    CHECK(rows % shape.tokens == 0);
    CHECK(rows <= samples_ * shape.tokens);
    return MatrixRef<float>(all.data(), rows, shape.channels);
  }
  VectorRef<float> losses_of(int micro_batch, int rows) const {
    return VectorRef<float>(
        loss_.data() + static_cast<std::size_t>(micro_batch) * samples_ * kTokens, rows);
  }

  bool first_, last_;
  Ends ends_;
  Gradients gradients_;
  float weight_ = 0;
  int samples_ = 0;
  TokenEmbedding<float>* embedding_ = nullptr;
  ParameterArena<float> parameters_;
  std::vector<Slot> slots_;
  Vector<float> mean_gradient_B_, loss_;
};

TokenDataset dataset() {
  auto store = std::make_shared<TokenStore>(10);
  store->append(std::vector<std::int32_t>(kTokens + 1, 1));
  return {store, std::vector<TokenWindow>(kSamples, {0, kTokens}), kTokens, 0};
}

/// Powers of two, so that spreading a sum is exact. Of boundary 0, 1, 2.
using Boundaries = std::vector<BoundaryShape>;
const Boundaries kEqual = {{kTokens, 8}, {kTokens, 8}, {kTokens, 8}};
const Boundaries kDifferentWidths = {{kTokens, 2}, {kTokens, 64}, {kTokens, 1}};
const Boundaries kDifferentTokens = {{2, 8}, {16, 4}, {1, 32}};

SumStage::Ends ends_of(const Boundaries& boundaries, int stage, int stages) {
  SumStage::Ends ends;
  if (stage > 0) ends.input = boundaries[stage - 1];
  if (stage + 1 < stages) ends.output = boundaries[stage];
  return ends;
}

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

PipelineOptions options_of(int stages) {
  PipelineOptions options;
  options.pipeline.stages = stages;
  options.micro_batch_size = kSamplesAtOnce;
  options.micro_batches = static_cast<int>(kSamples) / kSamplesAtOnce;
  return options;
}

PipelineShape shape_of(const PipelineOptions& options) {
  PipelineShape shape = pipeline_shape(options, 10, kTokens, true);
  shape.train_samples = kSamples;
  return shape;
}

void run_steps(PipelineOptions options, const Boundaries& boundaries, Gradients gradients) {
  const int stages = options.pipeline.stages;
  const ProcessGrid grid(MPI_COMM_WORLD, stages, 1);
  ProgressThread progress(MPI_COMM_WORLD);
  SumStage stage(grid.stage(), stages, ends_of(boundaries, grid.stage(), stages), gradients);
  stage.parameters().allocate(true);
  const TokenDataset data = dataset();
  Pipeline pipeline(options, shape_of(options), grid, progress,
                    std::array<Stage<float>*, 1>{&stage});
  const StepPlanner planner(data, 1, true, {options.micro_batch_size, options.micro_batches, 1});

  double product = 1, inputs = 0;
  for (int s = 0; s < stages; ++s) product *= weight_of(s);
  for (std::uint64_t id = 0; id < kSamples; ++id) inputs += sum_of_input(id);
  const double loss = product * inputs;
  for (std::uint64_t step = 0; step < 2; ++step) {
    int updates = 0;
    pipeline.train_step(data, planner.plan(step, 0), false, [&] {
      ++updates;
      CHECK(stage.gradient() ==
            loss / weight_of(grid.stage()) / static_cast<double>(data.all_targets()));
      CHECK(pipeline.loss_sum() == (grid.last() ? loss : 0));
    });
    CHECK(updates == 1);
  }
  CHECK(stage.backward_passes == 2 * options.micro_batches);
  pipeline.evaluate_step(data, planner.plan(0, 0));
  CHECK(pipeline.loss_sum() == (grid.last() ? loss : 0));
  CHECK(stage.backward_passes == 2 * options.micro_batches);
  barrier(progress, MPI_COMM_WORLD);
}

TEST_CASE("Every schedule runs stages to their losses and gradients", "[pipeline]") {
  PipelineOptions options = options_of(world_size());
  options.pipeline.schedule = GENERATE(from_range(schedules().begin(), schedules().end())).name;
  options.pipeline.in_flight = GENERATE(1, 3);
  const Gradients gradients = GENERATE(Gradients::separate, Gradients::one_memory);
  CAPTURE(options.pipeline.schedule, options.pipeline.in_flight, gradients);
  run_steps(options, kEqual, gradients);
}

TEST_CASE("Each boundary has the tokens and channels of its stages", "[pipeline]") {
  PipelineOptions options = options_of(world_size());
  const Boundaries boundaries = GENERATE(kDifferentWidths, kDifferentTokens);
  const Gradients gradients = GENERATE(Gradients::separate, Gradients::one_memory);
  // fp16 holds all of these values exactly.
  options.forward.kind = options.backward.kind = GENERATE(CodecKind::none, CodecKind::fp16);
  run_steps(options, boundaries, gradients);
}

TEST_CASE("A boundary's bytes are those of its shape", "[pipeline]") {
  const int stages = world_size();
  for (const Boundaries& boundaries : {kDifferentWidths, kDifferentTokens})
    for (int s = 0; s + 1 < stages; ++s) {
      const PipelineOptions options = options_of(stages);
      const SumStage stage(s, stages, ends_of(boundaries, s, stages), Gradients::separate);
      const StagePlan plan = plan_stage(options, shape_of(options), stage, {s, stages, 0, 1});
      for (const auto& end : {plan.send_forward, plan.receive_backward}) {
        CHECK(end->codec.shape.tokens == boundaries[s].tokens);
        CHECK(end->codec.shape.channels == boundaries[s].channels);
      }
      CHECK_FALSE(plan.tokens);
      CHECK_FALSE(plan.has_token_index);
    }
}

/// Error that refuses the stage's pipeline; empty: accepted.
std::string refusal_of(const ProcessGrid& grid, ProgressThread& progress, SumStage& stage) {
  stage.parameters().allocate(true);
  const PipelineOptions options = options_of(grid.stages());
  try {
    Pipeline(options, shape_of(options), grid, progress, std::array<Stage<float>*, 1>{&stage});
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

/// For a stage that should not have it, or should have another one.
class StrayEmbedding final : public TokenEmbedding<float> {
 public:
  explicit StrayEmbedding(bool frozen = false) : frozen_(frozen) {}
  bool shared() const override { return true; }
  int embedding_channels() const override { return 8; }
  int wte() const override { return -1; }
  bool wte_frozen() const override { return frozen_; }
  MatrixRef<float> embedding_rows(int) override { return {}; }
  MatrixRef<float> embedding_gradient(const ExecSpace&, const VectorRef<const std::int32_t>&,
                                      const VectorRef<const std::int32_t>&, int) override {
    return {};
  }

 private:
  bool frozen_;
};

TEST_CASE("A shared embedding belongs to the first stage and the last", "[pipeline]") {
  const int stages = world_size();
  if (stages == 1) return;
  const int culprit = GENERATE(0, 1);  // between two others, or alone at an end
  MPI_Comm world = MPI_COMM_NULL;      // of no further use after the stop
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  const ProcessGrid grid(world, stages, 1);
  ProgressThread progress(world);
  SumStage stage(grid.stage(), stages, ends_of(kEqual, grid.stage(), stages), Gradients::separate);
  StrayEmbedding embedding;
  if (grid.stage() == culprit) stage.set_token_embedding(&embedding);
  const std::string text = refusal_of(grid, progress, stage);
  const bool between = culprit > 0 && culprit + 1 < stages;
  CHECK_THAT(text, Contains(between ? "a stage between the first and the last" : "disagree on"));
  CHECK_THAT(text, Contains("shared token embedding"));
  barrier(progress, world);
}

TEST_CASE("Both ends of a shared embedding know whether rows travel", "[pipeline]") {
  const int stages = world_size();
  if (stages == 1) return;
  const int frozen_at = GENERATE(0, 1, 2);  // the first, the last, both without a copy
  MPI_Comm world = MPI_COMM_NULL;           // of no further use after the stop
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  const ProcessGrid grid(world, stages, 1);
  ProgressThread progress(world);
  SumStage stage(grid.stage(), stages, ends_of(kEqual, grid.stage(), stages), Gradients::separate);
  StrayEmbedding embedding(frozen_at == 2 || frozen_at == (grid.first() ? 0 : 1));
  if (grid.first() || grid.last()) stage.set_token_embedding(&embedding);
  const std::string text = refusal_of(grid, progress, stage);
  CHECK_THAT(text, Contains(frozen_at == 2   ? "the first stage has no copy"
                            : frozen_at == 1 ? "the last says that it is"
                                             : "the first says that it is"));
  CHECK_THAT(text, Contains("frozen"));
  barrier(progress, world);
}

TEST_CASE("Stages that disagree on a boundary are refused on all ranks", "[pipeline]") {
  const int stages = world_size();
  if (stages == 1) return;
  const int culprit = stages - 1;
  const BoundaryShape wrong = GENERATE(BoundaryShape{kTokens, 4}, BoundaryShape{2, 8});
  MPI_Comm world = MPI_COMM_NULL;  // of no further use after the stop
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  const ProcessGrid grid(world, stages, 1);
  ProgressThread progress(world);
  SumStage::Ends ends = ends_of(kEqual, grid.stage(), stages);
  if (grid.stage() == culprit) ends.input = wrong;
  SumStage stage(grid.stage(), stages, ends, Gradients::separate);
  const std::string text = refusal_of(grid, progress, stage);
  const std::string sent = std::to_string(kTokens) + " x 8";
  const std::string expected =
      std::to_string(wrong.tokens) + " x " + std::to_string(wrong.channels);
  CHECK_THAT(
      text, Contains("stages " + std::to_string(culprit - 1) + " and " + std::to_string(culprit)) &&
                Contains("at boundary " + std::to_string(culprit - 1)) &&
                Contains("got " + sent + " and " + expected));
  barrier(progress, world);
}

}  // namespace
}  // namespace deltapipe
