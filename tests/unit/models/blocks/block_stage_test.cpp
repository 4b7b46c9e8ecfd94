// SPDX-License-Identifier: BSD-3-Clause
// A model without tokens made of blocks: vectors, a linear layer to another width, two residual
// MLPs and a classifier. It has no token embedding and continues no texts.
#include <catch2/catch.hpp>
#include <map>

#include "core/kernels/gemm/blas.hpp"
#include "models/blocks/language_head.hpp"
#include "models/blocks/transformer_block.hpp"
#include "models/partition.hpp"
#include "tests/unit/models/blocks/stage_harness.hpp"

using namespace deltapipe;
using test::PassKind;
using test::StageHarness;

namespace {

constexpr int kWidth = 3, kChannels = 4, kHidden = 6, kClasses = 5, kBlocks = 3;

/// x(n, c) = sin(id + c): the first end of a model whose samples are vectors.
class VectorInput final : public FirstEnd<double> {
 public:
  void reserve(const StageCapacity&, const ViewAllocator&) override {}
  void forward(const BlockPass<double>& pass, const MatrixRef<double>& x) const override {
    const VectorRef<const std::uint64_t> id_B = pass.batch.sample_id_B;
    for_range(
        "test::vectorInput", pass.exec, x.extent_int(0), DELTAPIPE_LAMBDA(int n) {
          for (int c = 0; c < kWidth; ++c) x(n, c) = std::sin(static_cast<double>(id_B(n)) + c);
        });
  }
};

/// y_ND = x_NC W + b, which changes the width and therefore does not run in place.
class Widen final : public Block<double> {
 public:
  Widen(ParameterArena<double>& parameters, int bucket)
      : linear_(parameters, "widen", kWidth, kChannels, bucket) {}

  BoundaryShape output_shape(const BoundaryShape& input) const override {
    return {input.tokens, kChannels};
  }
  SavedTensors saved() const override { return {}; }
  SavedTensors postponed() const override { return {{"test::Widen::gradient", kChannels}}; }
  void require(const StageCapacity&, WorkspaceSize& size) const override {
    size.raise(kChannels, kChannels);
  }
  void forward_saved(const BlockPass<double>&, const MatrixRef<double>&) const override {}
  void forward_output(const BlockPass<double>& pass, const MatrixRef<double>& x,
                      const MatrixRef<double>& y) const override {
    linear_forward<double>(pass.exec, x, linear_.weight(), linear_.bias(), y,
                           pass.workspace.products);
  }
  void backward(const BlockPass<double>& pass, const MatrixRef<double>& x,
                const MatrixRef<double>& gradient, bool accumulate) const override {
    const int rows = x.extent_int(0);
    const Matrix<double>& copy = pass.postponed ? pass.postponed[0] : pass.workspace.branch_NC;
    const MatrixRef<double> dy = narrow(copy, rows, kChannels);
    Kokkos::deep_copy(pass.exec, dy, MatrixRef<double>(gradient.data(), rows, kChannels));
    linear_.input_gradient(pass.exec, dy, MatrixRef<double>(gradient.data(), rows, kWidth),
                           pass.workspace);
    if (!pass.postponed) linear_.parameter_gradient(pass.exec, x, dy, accumulate, pass.workspace);
  }
  void backward_parameters(const BlockPass<double>& pass, const MatrixRef<double>& x,
                           bool accumulate) const override {
    linear_.parameter_gradient(pass.exec, x, narrow(pass.postponed[0], x.extent_int(0), kChannels),
                               accumulate, pass.workspace);
  }

 private:
  LinearLayer<double> linear_;
};

BlockStage<double>::Build toy(const StagePart& part) {
  return [part](ParameterArena<double>& parameters) {
    StageParts<double> parts;
    const int width = part.first_block == 0 ? kWidth : kChannels;
    parts.input_shape = [width](int tokens) { return BoundaryShape{tokens, width}; };
    if (part.first) parts.first = std::make_unique<VectorInput>();
    int bucket = 0;
    for (int i = part.first_block; i < part.first_block + part.blocks; ++i, ++bucket) {
      const std::string name = "layers." + std::to_string(i) + ".";
      if (i == 0)
        parts.blocks.push_back({std::make_unique<Widen>(parameters, bucket), bucket});
      else
        parts.blocks.push_back({std::make_unique<MlpBlock<double>>(
                                    parameters, MlpNames{name + "norm", name + "up", name + "down"},
                                    MlpOptions{.channels = kChannels, .hidden = kHidden}, bucket),
                                bucket});
    }
    if (part.last) {
      const NormLayer<double> norm(parameters, "norm", kChannels, 1e-5, bucket);
      const int matrix = parameters.add("classes", {kClasses, kChannels}, true, bucket + 1);
      parts.last = std::make_unique<LanguageHead<double>>(parameters, norm, matrix,
                                                          std::vector<int>{bucket + 1, bucket});
    }
    return parts;
  };
}

/// The stages of the toy model, one after another.
struct Pipeline {
  Pipeline(const std::vector<int>& partition, const PassKind& kind) {
    for (int k = 0; k < static_cast<int>(partition.size()); ++k) {
      stages.push_back(std::make_unique<StageHarness>(toy(stage_part(partition, k)), 1, kind));
      for (int i = 0; i < stages[k]->parameters(); ++i) {
        const ParameterInfo& p = stages[k]->stage.parameters().info()[i];
        place[p.name] = {k, i};
        stages[k]->set_parameter(
            i, test::random_values(p.size, 7 * p.size + p.name.size() + p.name[7 % p.name.size()]));
      }
    }
  }
  double forward() {
    for (std::size_t k = 0; k < stages.size(); ++k) {
      if (k > 0) test::fill(stages[k]->input(), test::to_host(stages[k - 1]->output()));
      stages[k]->forward();
    }
    return stages.back()->loss();
  }
  std::map<std::string, std::vector<double>> gradients() {
    forward();
    for (int k = static_cast<int>(stages.size()) - 1; k >= 0; --k) {
      const std::vector<double> dx = stages[k]->backward();
      if (k > 0) test::fill(stages[k - 1]->output_gradient(), dx);
    }
    std::map<std::string, std::vector<double>> all;
    for (const auto& [name, at] : place)
      all[name] = stages[at.first]->parameter_gradient(at.second);
    return all;
  }

  std::vector<std::unique_ptr<StageHarness>> stages;
  std::map<std::string, std::pair<int, int>> place;  ///< stage and index
};

}  // namespace

TEST_CASE("A model of vectors has the same loss and gradients on one stage and on three",
          "[models][blocks]") {
  use_single_threaded_blas();
  Pipeline whole({kBlocks}, {false, false});
  const auto expected = whole.gradients();
  CHECK(std::isfinite(whole.forward()));
  for (const PassKind& kind : {PassKind{false, false}, {true, false}, {false, true}})
    for (const std::vector<int>& partition : {std::vector<int>{3}, {1, 1, 1}}) {
      CAPTURE(kind.split, kind.recompute, partition);
      Pipeline parts(partition, kind);
      CHECK(parts.gradients() == expected);
      CHECK(parts.forward() == whole.forward());
    }
}

TEST_CASE("A model of vectors has the loss's slopes as gradients", "[models][blocks]") {
  use_single_threaded_blas();
  const std::vector<int> partition = GENERATE(std::vector<int>{3}, std::vector<int>{1, 1, 1});
  const bool split = GENERATE(false, true);
  CAPTURE(partition, split);
  Pipeline pipeline(partition, {split, false});
  const auto gradients = pipeline.gradients();
  CHECK(gradients.size() == 2 + 2 * 6 + 2 + 1);
  for (const auto& [name, gradient] : gradients) {
    INFO(name);
    StageHarness& h = *pipeline.stages[pipeline.place[name].first];
    const int index = pipeline.place[name].second;
    const std::vector<double> start = h.parameter(index);
    const auto value = [&](const std::vector<double>& at) {
      h.set_parameter(index, at);
      return pipeline.forward();
    };
    CHECK(test::slope_error(value, start, gradient) < 1e-8);
    h.set_parameter(index, start);
  }
}

TEST_CASE("A model of vectors has no token embedding and continues no texts", "[models][blocks]") {
  BlockStage<double> stage(toy({0, kBlocks, true, true}), {});
  CHECK(stage.token_embedding() == nullptr);
  CHECK(stage.text_continuation() == nullptr);
  CHECK(stage.late_buckets() == std::array<int, 2>{-1, -1});
  CHECK(stage.input_shape(1) == BoundaryShape{1, kWidth});
  CHECK(stage.output_shape(1) == BoundaryShape{1, kChannels});
}

TEST_CASE("Frozen first blocks have no backward pass and share memory", "[models][blocks]") {
  use_single_threaded_blas();
  const BlockStage<double>::Build build = toy({0, kBlocks, true, true});
  std::set<std::string> frozen;
  const BlockStage<double> trained(build, {});
  for (const ParameterInfo& p : trained.parameters().info())
    if (!p.name.starts_with("layers.2.") && p.name != "classes") frozen.insert(p.name);
  StageCapacity capacity;
  capacity.samples = 8;
  const std::uint64_t all = trained.memory(capacity).bytes(MemoryUse::activations);
  const BlockStage<double> stage(build, frozen);
  // Block 1 runs in place: one matrix less.
  CHECK(all - stage.memory(capacity).bytes(MemoryUse::activations) == 8u * kChannels * 8);
}
