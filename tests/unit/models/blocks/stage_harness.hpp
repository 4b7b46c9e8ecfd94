// SPDX-License-Identifier: BSD-3-Clause
// A BlockStage in double with one micro-batch, against finite differences.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/blocks/block_stage.hpp"
#include "support/device_values.hpp"
#include "support/finite_differences.hpp"

namespace deltapipe::test {

inline constexpr int kSamples = 2;
inline constexpr int kValues = 3;  ///< of a row

/// Form of the backward pass: split into two parts, with recomputation.
struct PassKind {
  bool split, recompute;
  bool as_on_device = false;          ///< groups heads as on a device
  std::set<std::string> frozen = {};  ///< parameters without gradients
};

class StageHarness {
 public:
  StageHarness(const BlockStage<double>::Build& build, int tokens, const PassKind& kind)
      : stage(build, kind.frozen), kind_(kind) {
    if (kind.as_on_device) stage.compute_as_on_device(true);
    StageCapacity capacity;
    capacity.samples = kSamples;
    capacity.tokens = tokens;
    capacity.slots = 2;
    capacity.embedding_rows = 5;
    capacity.splits_backward = kind.split;
    capacity.recompute = kind.recompute;
    CHECK(stage.memory(capacity).bytes(MemoryUse::activations) > 0);
    stage.parameters().allocate(true);
    stage.reserve(capacity);
    std::vector<std::int32_t> rows, targets;
    for (int n = 0; n < kSamples * tokens; ++n) {
      rows.push_back((3 * n + 1) % 5);
      targets.push_back(n == 1 ? -1 : (2 * n + 1) % 5);
    }
    ids_ = to_device(std::vector<std::uint64_t>{11, 12});
    rows_ = to_device(rows);
    targets_ = to_device(targets);
    std::vector<std::int32_t> segments;
    for (int n = 0; n < kSamples * tokens; ++n) segments.push_back(n % 2);
    segments_ = to_device(segments);
    labels_ = to_device(std::vector<std::int32_t>{3, 1});
    values_ = to_device(random_values<float>(kSamples * tokens * kValues, 9));
    batch.seed = 1;
    batch.step = 2;
    batch.samples = kSamples;
    batch.tokens = tokens;
    batch.sample_id_B = ids_;
    batch.fields.set(Field::tokens, rows_);
    batch.fields.set(Field::next_tokens, targets_);
    batch.fields.set(Field::segments, segments_);
    batch.fields.set(Field::label, labels_);
    batch.fields.set(Field::values, values_);
    batch.loss_scale = 0.5;
    for (int i = 0; i < parameters(); ++i)
      set_parameter(i, random_values(stage.parameters().info()[i].size, 100 + i));
  }

  int parameters() const { return static_cast<int>(stage.parameters().info().size()); }
  std::vector<double> parameter(int i) const { return to_host(stage.parameters().value(i)); }
  void set_parameter(int i, const std::vector<double>& values) {
    stage.parameters().copy_in(exec, i, 0, values);
  }
  std::vector<double> parameter_gradient(int i) const {
    return to_host(stage.parameters().gradient(i));
  }
  void forward() { stage.forward(exec, batch, kSlot, true, false); }
  /// Returns the gradient of the input.
  std::vector<double> backward() {
    if (kind_.split)
      stage.backward_inputs(exec, batch, kSlot, false);
    else
      stage.backward(exec, batch, kSlot, false, {});
    const std::vector<double> dx = to_host(stage.input_gradient(kSlot, in_rows()));
    if (kind_.split) stage.backward_parameters(exec, batch, kSlot, false, {});
    if (const CommonParameters<double>* const common = stage.common_parameters()) {
      common->add_gradients(exec, true);
      common->finish_gradients(exec);
    }
    return dx;
  }
  MatrixRef<double> input() { return stage.input(kSlot, in_rows()); }
  MatrixRef<double> output() { return stage.output(kSlot, out_rows()); }
  MatrixRef<double> output_gradient() { return stage.output_gradient(kSlot, out_rows()); }
  /// Sets the valid rows of each sample.
  void set_lengths(const std::vector<std::int32_t>& lengths) {
    lengths_ = to_device(lengths);
    batch.length_B = lengths_;
  }
  double loss() {
    double sum = 0;
    const int count = kSamples * stage.scored_rows(batch.tokens);
    for (const double score : to_host(stage.scores(0, count))) sum += score;
    return batch.loss_scale * sum;
  }

  BlockStage<double> stage;
  ExecSpace exec;
  MicroBatch batch;

 private:
  static constexpr int kSlot = 1;

  int in_rows() const { return kSamples * stage.input_shape(batch.tokens).tokens; }
  int out_rows() const { return kSamples * stage.output_shape(batch.tokens).tokens; }

  PassKind kind_;
  Vector<std::uint64_t> ids_;
  Vector<std::int32_t> rows_, segments_, targets_, labels_, lengths_;
  Vector<float> values_;
};

inline void fill(const MatrixRef<double>& matrix, const std::vector<double>& values) {
  copy_to_device<double>(values, VectorRef<double>(matrix.data(), matrix.size()));
}

/// Checks the gradients of all parameters and, unless the stage is the first one, of the input.
/// The function is the stage's loss, or a random combination of its output. `lengths`: valid rows
/// of each sample; empty: all.
inline void check_gradients(const BlockStage<double>::Build& build, int tokens,
                            const PassKind& kind, bool first, bool last,
                            const std::vector<std::int32_t>& lengths = {}) {
  CAPTURE(kind.split, kind.recompute, lengths);
  StageHarness h(build, tokens, kind);
  h.set_lengths(lengths);
  const std::vector<double> x = random_values(h.input().size(), 1);
  const std::vector<double> u = random_values(h.output().size(), 2);
  const auto value = [&](const std::vector<double>& at) {
    if (!first) fill(h.input(), at);
    h.forward();
    return last ? h.loss() : dot(to_host(h.output()), u);
  };
  value(x);
  if (!last) fill(h.output_gradient(), u);
  const std::vector<double> dx = h.backward();
  std::vector<std::vector<double>> gradients;
  for (int i = 0; i < h.parameters(); ++i) gradients.push_back(h.parameter_gradient(i));
  if (!first) CHECK(slope_error(value, x, dx) < 1e-8);
  for (int i = 0; i < h.parameters(); ++i) {
    INFO(h.stage.parameters().info()[i].name);
    if (h.stage.parameters().info()[i].frozen) continue;
    if (h.stage.token_embedding() && h.stage.token_embedding()->wte() == i && !last) continue;
    const std::vector<double> start = h.parameter(i);
    const auto of_parameter = [&](const std::vector<double>& at) {
      h.set_parameter(i, at);
      return value(x);
    };
    CHECK(slope_error(of_parameter, start, gradients[i]) < 1e-8);
    h.set_parameter(i, start);
  }
}

}  // namespace deltapipe::test
