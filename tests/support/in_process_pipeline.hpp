// SPDX-License-Identifier: BSD-3-Clause
// Runs the stages of a GPT-2 one after another in one process: what a pipeline computes without
// messages, codecs or schedules.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/kernels/embedding.hpp"
#include "models/gpt2/gpt2_stage.hpp"
#include "models/optimizer.hpp"
#include "models/partition.hpp"
#include "support/device_values.hpp"

namespace deltapipe::test {

struct PipelineShape {
  int samples = 1;  ///< of a micro-batch
  int tokens = 1;
  int micro_batches = 1;
  bool recompute = false;
  /// All micro-batches go forward before the first goes back; else one after the other.
  bool forward_first = true;
  std::uint64_t seed = 42;  ///< of dropout
};

/// The samples of one step: [S, T] each, S <= micro_batches * samples.
struct StepData {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  std::vector<std::uint64_t> sample_ids;  ///< [S]
};

template <class Real>
class InProcessPipeline {
 public:
  struct StepResult {
    double loss = 0;  ///< mean over the targets that are not padding
    double gradient_norm = 0;
  };

  InProcessPipeline(const Gpt2Config& config, const std::vector<int>& partition,
                    const PipelineShape& shape, const OptimizerSettings& settings)
      : config_(config), shape_(shape), settings_(settings) {
    for (std::size_t k = 0; k < partition.size(); ++k) {
      stages_.push_back(std::make_unique<Gpt2Stage<Real>>(
          config, stage_part(partition, static_cast<int>(k)), true));
      StageCapacity capacity;
      capacity.samples = shape.samples;
      capacity.tokens = shape.tokens;
      capacity.slots = shape.forward_first ? shape.micro_batches : 1;
      capacity.micro_batches = shape.micro_batches;
      capacity.table_rows =
          std::min(shape.samples * shape.tokens * shape.micro_batches, config.vocabulary_size);
      capacity.recompute = shape.recompute;
      stages_.back()->reserve(capacity);
      optimizers_.push_back(
          std::make_unique<Optimizer<Real>>(settings, stages_.back()->parameters()));
    }
  }

  int stage_count() const { return static_cast<int>(stages_.size()); }
  Gpt2Stage<Real>& stage(int k) { return *stages_[k]; }

  /// Losses' gradients of the step without an update.
  double gradients(const StepData& data, std::uint64_t step) {
    prepare(data, step);
    const int count = static_cast<int>(batches_.size());
    if (shape_.forward_first) {
      for (int m = 0; m < count; ++m) forward(m, m, true);
      for (int m = 0; m < count; ++m) backward(m, m);
    } else {
      for (int m = 0; m < count; ++m) {
        forward(m, 0, true);
        backward(m, 0);
      }
    }
    add_table_gradient();
    return loss();
  }

  /// Losses' mean without dropout and gradients.
  double evaluate(const StepData& data) {
    prepare(data, 0);
    for (int m = 0; m < static_cast<int>(batches_.size()); ++m) forward(m, 0, false);
    return loss();
  }

  StepResult train(const StepData& data, std::uint64_t step, double learning_rate) {
    StepResult result;
    result.loss = gradients(data, step);
    double square = 0;
    for (const auto& optimizer : optimizers_)
      for (const double value : optimizer->squared_norms(exec_)) square += value;
    result.gradient_norm = std::sqrt(square);
    const double factor = settings_.clip_norm > 0
                              ? std::min(1.0, settings_.clip_norm / (result.gradient_norm + 1e-6))
                              : 1.0;
    for (const auto& optimizer : optimizers_) optimizer->update(exec_, step, learning_rate, factor);
    exec_.fence();
    return result;
  }

  /// Logits of a micro-batch in the slot that it went through last. [rows, V]
  std::vector<Real> logits(int slot, int rows) {
    std::vector<Real> all;
    for (int row = 0; row < rows; ++row) {
      const VectorRef<const Real> view = stages_.back()->logits(exec_, slot, row);
      exec_.fence();
      const std::vector<Real> values = to_host(view);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  std::map<std::string, std::vector<Real>> parameters() {
    return collect([](const ParameterArena<Real>& p, int i) { return p.value(i); });
  }
  std::map<std::string, std::vector<Real>> parameter_gradients() {
    return collect([](const ParameterArena<Real>& p, int i) { return p.gradient(i); });
  }
  void set_parameter(const std::string& name, const std::vector<Real>& values) {
    for (const auto& stage : stages_) {
      const ParameterArena<Real>& p = stage->parameters();
      for (std::size_t i = 0; i < p.info().size(); ++i)
        if (p.info()[i].name == name) copy_to_device<Real>(values, p.value(static_cast<int>(i)));
    }
  }

 private:
  struct Batch {
    MicroBatch micro_batch;
    Vector<std::uint64_t> sample_ids;
    Vector<std::int32_t> rows, targets;
  };

  Gpt2Stage<Real>& table_owner() {
    return stages_.front()->token_table() >= 0 ? *stages_.front() : *stages_.back();
  }

  template <class Get>
  std::map<std::string, std::vector<Real>> collect(const Get& get) {
    std::map<std::string, std::vector<Real>> all;
    for (const auto& stage : stages_) {
      const ParameterArena<Real>& p = stage->parameters();
      for (std::size_t i = 0; i < p.info().size(); ++i)
        all[p.info()[i].name] = to_host(get(p, static_cast<int>(i)));
    }
    return all;
  }

  void prepare(const StepData& data, std::uint64_t step) {
    const int T = shape_.tokens;
    const std::set<std::int32_t> distinct(data.tokens.begin(), data.tokens.end());
    const std::vector<std::int32_t> unique(distinct.begin(), distinct.end());
    const bool table_here = stages_.front()->token_table() >= 0;
    std::vector<std::vector<std::int32_t>> rows_of(unique.size());
    const int S = static_cast<int>(data.sample_ids.size());
    real_targets_ = static_cast<double>(
        std::count_if(data.targets.begin(), data.targets.end(), [](int t) { return t >= 0; }));
    batches_.clear();
    for (int first = 0; first < S; first += shape_.samples) {
      const int count = std::min(shape_.samples, S - first);
      const int m = static_cast<int>(batches_.size());
      std::vector<std::int32_t> rows;
      for (int n = 0; n < count * T; ++n) {
        const std::int32_t token = data.tokens[first * T + n];
        const auto u = std::lower_bound(unique.begin(), unique.end(), token) - unique.begin();
        rows.push_back(table_here ? token : static_cast<std::int32_t>(u));
        rows_of[u].push_back(m * shape_.samples * T + n);
      }
      Batch batch;
      batch.rows = to_device(rows);
      batch.targets = to_device(std::vector<std::int32_t>(
          data.targets.begin() + first * T, data.targets.begin() + (first + count) * T));
      batch.sample_ids = to_device(std::vector<std::uint64_t>(
          data.sample_ids.begin() + first, data.sample_ids.begin() + first + count));
      batch.micro_batch.seed = shape_.seed;
      batch.micro_batch.step = step;
      batch.micro_batch.index = m;
      batch.micro_batch.samples = count;
      batch.micro_batch.tokens = T;
      batch.micro_batch.sample_id_B = batch.sample_ids;
      batch.micro_batch.row_N = batch.rows;
      batch.micro_batch.target_N = batch.targets;
      batch.micro_batch.loss_scale = 1 / real_targets_;
      batches_.push_back(batch);
    }
    std::vector<std::int32_t> first_of = {0}, row_of;
    for (const auto& rows : rows_of) {
      row_of.insert(row_of.end(), rows.begin(), rows.end());
      first_of.push_back(static_cast<std::int32_t>(row_of.size()));
    }
    unique_ = to_device(unique);
    first_of_ = to_device(first_of);
    row_of_ = to_device(row_of);
    if (!table_here)
      gather_rows<Real>(exec_, table_owner().parameters().matrix(table_owner().token_table()),
                        unique_, stages_.front()->table_rows(static_cast<int>(unique.size())));
  }

  void forward(int m, int slot, bool training) {
    const MicroBatch& batch = batches_[m].micro_batch;
    for (int k = 0; k < stage_count(); ++k) {
      if (k > 0)
        Kokkos::deep_copy(exec_, stages_[k]->input(slot, batch.rows()),
                          stages_[k - 1]->output(slot, batch.rows()));
      stages_[k]->forward(exec_, batch, slot, training, m > 0);
    }
  }

  void backward(int m, int slot) {
    const MicroBatch& batch = batches_[m].micro_batch;
    for (int k = stage_count() - 1; k >= 0; --k) {
      if (k + 1 < stage_count())
        Kokkos::deep_copy(exec_, stages_[k]->output_gradient(slot, batch.rows()),
                          stages_[k + 1]->input_gradient(slot, batch.rows()));
      stages_[k]->backward(exec_, batch, slot, m > 0, {});
    }
  }

  void add_table_gradient() {
    Gpt2Stage<Real>& owner = table_owner();
    const MatrixRef<Real> target = owner.parameters().gradient_matrix(owner.token_table());
    if (!config_.tie_word_embeddings) Kokkos::deep_copy(exec_, target, Real(0));
    const MatrixRef<Real> rows = stages_.front()->table_gradient(
        exec_, first_of_, row_of_, static_cast<int>(unique_.extent(0)));
    add_rows<Real>(exec_, unique_, rows, target);
    exec_.fence();
  }

  double loss() {
    double sum = 0;
    for (std::size_t m = 0; m < batches_.size(); ++m)
      for (const Real loss :
           to_host(stages_.back()->losses(static_cast<int>(m), batches_[m].micro_batch.rows())))
        sum += static_cast<double>(loss);
    return sum / real_targets_;
  }

  Gpt2Config config_;
  PipelineShape shape_;
  OptimizerSettings settings_;
  ExecSpace exec_;
  std::vector<std::unique_ptr<Gpt2Stage<Real>>> stages_;
  std::vector<std::unique_ptr<Optimizer<Real>>> optimizers_;
  std::vector<Batch> batches_;
  Vector<std::int32_t> unique_, first_of_, row_of_;
  double real_targets_ = 1;
};

}  // namespace deltapipe::test
