// SPDX-License-Identifier: BSD-3-Clause
// The stages of a GPT-2 in one process: the product's programs and executor, without MPI, and
// without codecs unless the test brings them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/pipeline/token_index.hpp"
#include "comm/schedule/executor.hpp"
#include "core/base/error.hpp"
#include "core/base/numeric/random.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "models/gpt2/gpt2_stage.hpp"
#include "models/optimizer.hpp"
#include "models/partition.hpp"
#include "support/device_values.hpp"
#include "support/ranks_together.hpp"

namespace deltapipe::test {

struct PipelineShape {
  int samples = 1;  ///< of a micro-batch
  int tokens = 1;
  int micro_batches = 1;
  bool recompute = false;
  std::string schedule = "gpipe";
  std::uint64_t seed = 42;  ///< of dropout
  std::set<std::string> frozen = {};
  ProductPrecision products = ProductPrecision::fp32;
  bool as_on_device = !kHostExecution;  ///< Gpt2Stage::compute_as_on_device()
};

/// The samples of one step: [S, T] each, S <= micro_batches * samples.
struct StepData {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  std::vector<std::uint64_t> sample_ids;  ///< [S]
};

/// Samples of pseudo-random tokens, some targets padding.
inline StepData random_step(int samples, int tokens, int vocabulary, std::uint64_t step) {
  StepData data;
  std::uint64_t state = mix_bits(step + 1);
  for (int i = 0; i < samples * tokens; ++i) {
    state = mix_bits(state + 0x9e3779b97f4a7c15ull);
    data.tokens.push_back(static_cast<std::int32_t>(state % vocabulary));
    state = mix_bits(state + 1);
    data.targets.push_back(state % 11 == 0 ? -1 : static_cast<std::int32_t>(state % vocabulary));
  }
  for (int s = 0; s < samples; ++s) data.sample_ids.push_back(1000 * step + 7 * s);
  return data;
}

template <class Real>
class InProcessPipeline {
 public:
  struct StepResult {
    double loss = 0;  ///< mean over the targets that are not padding
    double gradient_norm = 0;
  };

  InProcessPipeline(const Gpt2Config& config, const std::vector<int>& partition,
                    const PipelineShape& shape, const OptimizerSettings& settings)
      : config_(config),
        shape_(shape),
        settings_(settings),
        schedule_(find_schedule(shape.schedule)),
        index_(config.vocabulary_size, shape.samples * shape.tokens * shape.micro_batches,
               shape.micro_batches) {
    const int stages = static_cast<int>(partition.size());
    for (int k = 0; k < stages; ++k)
      stages_.push_back(
          std::make_unique<Gpt2Stage<Real>>(config, stage_part(partition, k), shape.frozen));
    while (first_trained_ + 1 < stages && !stages_[first_trained_]->has_trained()) ++first_trained_;
    for (int k = 0; k < stages; ++k) {
      stages_[k]->compute_as_on_device(shape.as_on_device);
      stages_[k]->parameters().allocate(true, shape.products);
      StageCapacity capacity;
      capacity.samples = shape.samples;
      capacity.tokens = shape.tokens;
      capacity.slots = slots_needed(
          schedule_, {k, stages, shape.micro_batches, 1, EmbeddingPlace::none, first_trained_});
      capacity.training = k >= first_trained_;
      capacity.input_gradient = k > first_trained_;
      capacity.micro_batches = shape.micro_batches;
      capacity.embedding_rows =
          std::min(shape.samples * shape.tokens * shape.micro_batches, config.vocabulary_size);
      capacity.recompute = shape.recompute;
      capacity.products = shape.products;
      capacity.splits_backward = capacity.training && schedule_.splits_backward && !shape.recompute;
      stages_[k]->reserve(capacity);
      optimizers_.push_back(std::make_unique<Optimizer<Real>>(settings, stages_[k]->parameters()));
    }
  }

  /// Changes a micro-batch's activations at a boundary, in place; nothing at first.
  using Boundary = std::function<void(int boundary, int micro_batch, const MatrixRef<Real>& x_BTC)>;
  void set_boundary(Boundary boundary) { boundary_ = std::move(boundary); }

  int stage_count() const { return static_cast<int>(stages_.size()); }
  Gpt2Stage<Real>& stage(int k) { return *stages_[k]; }

  /// Losses' gradients of the step without an update.
  double gradients(const StepData& data, std::uint64_t step) {
    prepare(data, step);
    training_ = true;
    updates_ = 0;
    run_programs([&](const ScheduleShape& shape) { return training_program(schedule_, shape); });
    DELTAPIPE_ASSERT(updates_ == stage_count(), std::to_string(updates_) + " updates");
    return loss();
  }

  /// Losses' mean without dropout and gradients.
  double evaluate(const StepData& data) {
    prepare(data, 0);
    training_ = false;
    run_programs([](const ScheduleShape& shape) { return evaluation_program(shape); });
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
    return collect([this](const ParameterArena<Real>& p, int i) {
      std::vector<Real> values(p.info()[i].size);
      p.copy_out(exec_, i, 0, values);
      return values;
    });
  }
  /// Without elements for frozen parameters.
  std::map<std::string, std::vector<Real>> parameter_gradients() {
    return collect([](const ParameterArena<Real>& p, int i) { return to_host(p.gradient(i)); });
  }
  void set_parameter(const std::string& name, const std::vector<Real>& values) {
    for (const auto& stage : stages_) {
      const ParameterArena<Real>& p = stage->parameters();
      for (std::size_t i = 0; i < p.info().size(); ++i)
        if (p.info()[i].name == name) p.copy_in(exec_, static_cast<int>(i), 0, values);
    }
  }

 private:
  struct Batch {
    MicroBatch micro_batch;
    Vector<std::uint64_t> sample_ids;
    Vector<std::int32_t> rows, targets;
  };

  class Handler final : public InstructionHandler {
   public:
    Handler(InProcessPipeline& pipeline, int stage) : pipeline_(pipeline), stage_(stage) {}
    void send(const Transfer& message) override { pipeline_.send(stage_, message); }
    void receive(const Transfer& message) override { pipeline_.receive(stage_, message); }
    void forward(const StagePass& pass) override {
      pipeline_.stage(stage_).forward(pipeline_.exec_, batch(pass), pass.slot, pipeline_.training_,
                                      pass.accumulate);
    }
    void backward(const StagePass& pass) override {
      pipeline_.stage(stage_).backward(pipeline_.exec_, batch(pass), pass.slot, pass.accumulate,
                                       {});
    }
    void backward_inputs(const StagePass& pass) override {
      pipeline_.stage(stage_).backward_inputs(pipeline_.exec_, batch(pass), pass.slot,
                                              pass.accumulate);
    }
    void backward_parameters(const StagePass& pass) override {
      pipeline_.stage(stage_).backward_parameters(pipeline_.exec_, batch(pass), pass.slot,
                                                  pass.accumulate, {});
    }
    void reduce_zeros() override { DELTAPIPE_ASSERT(false, "a step without samples"); }
    void add_embedding_gradient() override { pipeline_.add_embedding_gradient(); }
    void add_common_gradient() override {
      DELTAPIPE_ASSERT(false, "GPT-2 has no common parameters");
    }
    void finish_reductions() override {}
    /// The norm over all stages is not known before all have come here.
    void update() override { ++pipeline_.updates_; }

   private:
    const MicroBatch& batch(const StagePass& pass) const {
      return pipeline_.batches_[pass.micro_batch].micro_batch;
    }
    InProcessPipeline& pipeline_;
    int stage_;
  };

  template <class MakeProgram>
  void run_programs(const MakeProgram& make) {
    std::vector<Program> programs;
    std::vector<Handler> stages;
    for (int k = 0; k < stage_count(); ++k) {
      programs.push_back(make(
          {k, stage_count(), static_cast<int>(batches_.size()), 1,
           config_.tie_word_embeddings ? EmbeddingPlace::shared : EmbeddingPlace::first_stage,
           first_trained_, stages_.front()->token_embedding()->wte_frozen(), shape_.recompute}));
      stages.emplace_back(*this, k);
    }
    std::vector<InstructionHandler*> handlers;
    for (Handler& stage : stages) handlers.push_back(&stage);
    run_together(programs, handlers);
    exec_.fence();
  }

  Gpt2Stage<Real>& table_owner() {
    return stages_.front()->token_embedding()->wte() >= 0 ? *stages_.front() : *stages_.back();
  }

  template <class Get>
  std::map<std::string, std::vector<Real>> collect(const Get& get) {
    std::map<std::string, std::vector<Real>> all;
    for (const auto& stage : stages_) {
      const ParameterArena<Real>& p = stage->parameters();
      for (std::size_t i = 0; i < p.info().size(); ++i)
        all[p.info()[i].name] = get(p, static_cast<int>(i));
    }
    return all;
  }

  void prepare(const StepData& data, std::uint64_t step) {
    const int T = shape_.tokens;
    const bool table_here = stages_.front()->token_embedding()->wte() >= 0;
    const int S = static_cast<int>(data.sample_ids.size());
    real_targets_ = static_cast<double>(
        std::count_if(data.targets.begin(), data.targets.end(), [](int t) { return t >= 0; }));
    batches_.clear();
    index_.clear();
    for (int first = 0; first < S; first += shape_.samples) {
      const int count = std::min(shape_.samples, S - first);
      const int m = static_cast<int>(batches_.size());
      std::vector<std::int32_t> rows(data.tokens.begin() + first * T,
                                     data.tokens.begin() + (first + count) * T);
      index_.add(rows, m * shape_.samples * T);
      if (!table_here)
        for (std::int32_t& row : rows) row = index_.row_of_token(row);
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
      batch.micro_batch.fields.set(Field::tokens, batch.rows);
      batch.micro_batch.fields.set(Field::next_tokens, batch.targets);
      batch.micro_batch.loss_scale = 1 / real_targets_;
      batches_.push_back(batch);
    }
    index_.finish(exec_);
    embedding_gradient_UC_ = Matrix<Real>("test::embeddingGradient", index_.size(), config_.n_embd);
  }

  /// Content of a message, at the end that sends it and at the one that receives it.
  MatrixRef<Real> contents(int k, const Transfer& message) {
    const int m = message.micro_batch, M = static_cast<int>(batches_.size());
    const int rows = batches_[m].micro_batch.rows();
    switch (message.wire) {
      case Wire::activation:
        return message.sends ? stage(k).output(message.slot, rows)
                             : stage(k).input(message.slot, rows);
      case Wire::gradient:
        return message.sends ? stage(k).input_gradient(message.slot, rows)
                             : stage(k).output_gradient(message.slot, rows);
      case Wire::embedding: {
        const MicroBatchGroup group = row_group(m, M);
        const int a = index_.needed_before(group.begin), b = index_.needed_before(group.end);
        if (!message.sends)
          return rows_of<Real>(stage(k).token_embedding()->embedding_rows(index_.size()), a, b - a);
        const MatrixRef<Real> needed = rows_of<Real>(embedding_gradient_UC_, a, b - a);
        gather_rows<Real>(exec_, stage(k).parameters().table(stage(k).token_embedding()->wte()),
                          VectorRef<const std::int32_t>(index_.token_U().data() + a, b - a),
                          needed);
        return needed;
      }
      case Wire::embedding_gradient: {
        const MicroBatchGroup group = gradient_group(m, M);
        const int a = index_.final_before(group.begin), b = index_.final_before(group.end);
        if (!message.sends) return rows_of<Real>(embedding_gradient_UC_, a, b - a);
        const VectorRef<const std::int32_t> first(index_.first_of_U().data() + a, b - a + 1);
        return stage(k).token_embedding()->embedding_gradient(exec_, first, index_.row_of(), b - a);
      }
      case Wire::common_gradient:
      case Wire::common_values:
        break;
    }
    return {};
  }

  static auto key_of(const Transfer& message) {
    return std::make_tuple(message.wire, message.boundary, message.micro_batch);
  }
  void send(int k, const Transfer& message) {
    const MatrixRef<Real> sent = contents(k, message);
    const Matrix<Real> copy("test::message", sent.extent(0), sent.extent(1));
    Kokkos::deep_copy(exec_, copy, sent);
    if (message.wire == Wire::activation && boundary_) {
      exec_.fence();
      boundary_(message.boundary, message.micro_batch, copy);
    }
    messages_[key_of(message)] = copy;
  }
  void receive(int k, const Transfer& message) {
    const auto found = messages_.find(key_of(message));
    DELTAPIPE_ASSERT(found != messages_.end(), "a message that nobody sent");
    Kokkos::deep_copy(exec_, contents(k, message), found->second);
    exec_.fence();
    messages_.erase(found);
  }

  void add_embedding_gradient() {
    Gpt2Stage<Real>& owner = table_owner();
    const MatrixRef<Real> target =
        owner.parameters().gradient_matrix(owner.token_embedding()->wte());
    if (!config_.tie_word_embeddings) Kokkos::deep_copy(exec_, target, Real(0));
    const MatrixRef<Real> rows =
        config_.tie_word_embeddings && stage_count() > 1
            ? MatrixRef<Real>(embedding_gradient_UC_)
            : stages_.front()->token_embedding()->embedding_gradient(
                  exec_, index_.first_of_U(), index_.row_of(), index_.size());
    add_rows<Real>(exec_, index_.token_by_last_use_U(), rows, target);
  }

  double loss() {
    double sum = 0;
    for (std::size_t m = 0; m < batches_.size(); ++m)
      for (const Real loss :
           to_host(stages_.back()->scores(static_cast<int>(m), batches_[m].micro_batch.rows())))
        sum += static_cast<double>(loss);
    return sum / real_targets_;
  }

  Gpt2Config config_;
  PipelineShape shape_;
  OptimizerSettings settings_;
  const Schedule& schedule_;
  ExecSpace exec_;
  std::vector<std::unique_ptr<Gpt2Stage<Real>>> stages_;
  std::vector<std::unique_ptr<Optimizer<Real>>> optimizers_;
  int first_trained_ = 0;  ///< stage
  std::vector<Batch> batches_;
  TokenIndex index_;
  /// Rows of the step's tokens to send, then their gradients; where the table is lent.
  Matrix<Real> embedding_gradient_UC_;
  std::map<std::tuple<Wire, int, int>, Matrix<Real>> messages_;
  Boundary boundary_;
  bool training_ = true;
  int updates_ = 0;
  double real_targets_ = 1;
};

}  // namespace deltapipe::test
