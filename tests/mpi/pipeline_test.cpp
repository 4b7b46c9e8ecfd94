// SPDX-License-Identifier: BSD-3-Clause
// The pipeline with stages that can be worked out by hand: y = w x, the loss of a row the sum of
// its last y. Every schedule gives their losses and gradients, and holds each micro-batch's slot.
#include "comm/pipeline/pipeline.hpp"

#include <catch2/catch.hpp>
#include <map>

#include "core/text/token_store.hpp"
#include "mpi_test.hpp"

namespace deltapipe {
namespace {

constexpr int kTokens = 2, kChannels = 3, kSamplesAtOnce = 2;
constexpr std::uint64_t kSamples = 16;

float weight_of(int stage) {
  return static_cast<float>(stage + 2);
}

class LinearStage final : public Stage<float> {
 public:
  LinearStage(int stage, int stages) : first_(stage == 0), last_(stage + 1 == stages) {
    parameters_.add("w", {1}, false, 0);
    parameters_.allocate(true);
    Kokkos::deep_copy(parameters_.value(0), weight_of(stage));
  }

  ParameterArena<float>& parameters() override { return parameters_; }
  int channels() const override { return kChannels; }
  bool is_first() const override { return first_; }
  bool is_last() const override { return last_; }
  void reserve(const StageCapacity& capacity) override {
    rows_ = capacity.samples * capacity.tokens;
    const auto matrix = [&] { return Matrix<float>("deltapipe::Test::rows", rows_, kChannels); };
    for (int slot = 0; slot < capacity.slots; ++slot) slots_.push_back({matrix(), matrix(), -1});
    gradient_in_ = matrix();
    gradient_out_ = matrix();
    loss_ = Vector<float>("deltapipe::Test::loss", rows_ * capacity.micro_batches);
  }

  MatrixRef<float> input(int slot, int rows) override { return part(slots_[slot].x, rows); }
  MatrixRef<float> output(int slot, int rows) override { return part(slots_[slot].y, rows); }
  MatrixRef<float> output_gradient(int, int rows) override { return part(gradient_out_, rows); }
  MatrixRef<float> input_gradient(int, int rows) override { return part(gradient_in_, rows); }

  void forward(const ExecSpace& exec, const MicroBatch& batch, int slot, bool training,
               bool) override {
    CHECK(slots_[slot].micro_batch == -1);
    if (training) slots_[slot].micro_batch = batch.index;
    const auto x = input(slot, batch.rows()), y = output(slot, batch.rows());
    const auto ids = batch.sample_id_B;
    const auto w = parameters_.value(0);
    const auto loss = losses_of(batch.index, batch.rows());
    const bool first = first_;
    Kokkos::parallel_for(
        "deltapipe::Test::forward", Kokkos::RangePolicy<ExecSpace>(exec, 0, batch.rows()),
        KOKKOS_LAMBDA(int n) {
          loss(n) = 0;
          for (int c = 0; c < kChannels; ++c) {
            if (first) x(n, c) = static_cast<float>(ids(n / kTokens)) + n % kTokens + c;
            y(n, c) = w(0) * x(n, c);
            loss(n) += y(n, c);
          }
        });
  }
  void backward(const ExecSpace& exec, const MicroBatch& batch, int slot, bool accumulate,
                const BucketFinal& bucket_final) override {
    CHECK(slots_[slot].micro_batch == batch.index);
    slots_[slot].micro_batch = -1;
    const auto x = input(slot, batch.rows());
    const auto dy = output_gradient(slot, batch.rows()), dx = input_gradient(slot, batch.rows());
    const auto w = parameters_.value(0), dw = parameters_.gradient(0);
    const bool last = last_;
    const auto scale = static_cast<float>(batch.loss_scale);
    Kokkos::parallel_for(
        "deltapipe::Test::backward", Kokkos::RangePolicy<ExecSpace>(exec, 0, 1),
        KOKKOS_LAMBDA(int) {
          if (!accumulate) dw(0) = 0;
          for (int n = 0; n < dy.extent_int(0); ++n)
            for (int c = 0; c < kChannels; ++c) {
              const float gradient = last ? scale : dy(n, c);
              dw(0) += gradient * x(n, c);
              dx(n, c) = gradient * w(0);
            }
        });
    if (bucket_final) bucket_final(0);
    ++backward_passes;
  }

  VectorRef<const float> losses(int micro_batch, int rows) override {
    return losses_of(micro_batch, rows);
  }
  VectorRef<const float> logits(const ExecSpace&, int, int) override { return {}; }
  bool tied() const override { return false; }
  int token_table() const override { return -1; }
  MatrixRef<float> table_rows(int) override { return {}; }
  MatrixRef<float> table_gradient(const ExecSpace&, const VectorRef<const std::int32_t>&,
                                  const VectorRef<const std::int32_t>&, int) override {
    return {};
  }

  float gradient() const {
    float value = 0;
    Kokkos::deep_copy(Kokkos::View<float*, Kokkos::HostSpace>(&value, 1), parameters_.gradient(0));
    return value;
  }
  int backward_passes = 0;

 private:
  struct Slot {
    Matrix<float> x, y;
    int micro_batch;
  };
  static MatrixRef<float> part(const Matrix<float>& all, int rows) {
    return MatrixRef<float>(all.data(), rows, kChannels);
  }
  VectorRef<float> losses_of(int micro_batch, int rows) const {
    return VectorRef<float>(loss_.data() + static_cast<std::size_t>(micro_batch) * rows_, rows);
  }

  bool first_, last_;
  int rows_ = 0;
  ParameterArena<float> parameters_;
  std::vector<Slot> slots_;
  Matrix<float> gradient_in_, gradient_out_;
  Vector<float> loss_;
};

TokenDataset dataset() {
  auto store = std::make_shared<TokenStore>(10);
  store->append(std::vector<std::int32_t>(kTokens + 1, 1));
  return {store, std::vector<TokenWindow>(kSamples, {0, kTokens}), kTokens, 0};
}

/// Sum over all rows and channels of the first stage's x.
double sum_of_inputs() {
  double sum = 0;
  for (std::uint64_t id = 0; id < kSamples; ++id)
    for (int t = 0; t < kTokens; ++t)
      for (int c = 0; c < kChannels; ++c) sum += static_cast<double>(id) + t + c;
  return sum;
}

TEST_CASE("Every schedule runs stages to their losses and gradients", "[pipeline]") {
  int stages = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &stages);
  const auto* schedule = GENERATE(from_range(schedules().begin(), schedules().end())).name;
  const int in_flight = GENERATE(1, 3);
  CAPTURE(schedule, in_flight);
  const ProcessGrid grid(MPI_COMM_WORLD, stages, 1);
  ProgressThread progress(MPI_COMM_WORLD);
  LinearStage stage(grid.stage(), stages);
  PipelineOptions options;
  options.pipeline.stages = stages;
  options.pipeline.schedule = schedule;
  options.pipeline.in_flight = in_flight;
  options.micro_batch_size = kSamplesAtOnce;
  options.micro_batches = static_cast<int>(kSamples) / kSamplesAtOnce;
  PipelineShape shape = pipeline_shape(options, 10, kTokens, true);
  shape.train_samples = kSamples;
  const TokenDataset data = dataset();
  Pipeline pipeline(options, shape, grid, progress, stage);
  const StepPlanner planner(data, 1, true, {options.micro_batch_size, options.micro_batches, 1});

  double product = 1;
  for (int s = 0; s < stages; ++s) product *= weight_of(s);
  const double loss = product * sum_of_inputs();
  for (std::uint64_t step = 0; step < 2; ++step) {
    int updates = 0;
    pipeline.train_step(data, planner.plan(step, 0), false, [&] {
      ++updates;
      CHECK(stage.gradient() ==
            loss / weight_of(grid.stage()) / static_cast<double>(data.tokens()));
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

}  // namespace
}  // namespace deltapipe
