// SPDX-License-Identifier: BSD-3-Clause
// One rank's part of the pipeline: its stage, its boundary ends, and the steps that run over them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/pipeline/boundary.hpp"
#include "comm/pipeline/embedding_exchange.hpp"
#include "comm/pipeline/executor.hpp"
#include "comm/pipeline/memory_resync.hpp"
#include "comm/pipeline/rank_plan.hpp"
#include "comm/pipeline/schedule.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "comm/pipeline/token_index.hpp"
#include "comm/replicas/gradient_all_reduce.hpp"
#include "comm/transport/process_grid.hpp"
#include "core/cache/io_thread.hpp"
#include "core/files/run_file.hpp"
#include "core/stage/stage.hpp"
#include "core/text/dataset.hpp"

namespace deltapipe {

/// What a rank measured since the last take_measurements(), laid out so that a sum over all ranks
/// is the record of the step.
struct StepMeasurements {
  StepMeasurements(int stages, int replicas);
  std::span<double> values() { return values_; }
  StepMeasurements& operator+=(const StepMeasurements& other);
  /// After the sum over ranks: fills a record's vectors.
  void fill(StepRecord& record) const;

  double& stage(int stage, StageValue value) {
    return values_[kStageValues * stage + static_cast<std::size_t>(value)];
  }
  enum Field { bytes, error2, signal2, change2, rest2, wire, step_sum, step_messages, fields };
  double& direction(int boundary, bool backward, Field field);
  /// Tied rows, which go backward from the last stage to the first, and their gradients.
  double& tied(bool gradients, Field field) { return direction(stages_ - 1, !gradients, field); }
  /// Bytes of collectives.
  double& collectives() { return values_.back(); }

 private:
  int stages_;
  int replicas_;
  std::vector<double> values_;
};

/// Values of a StepTotals.
inline constexpr std::size_t kStepTotals = 7;
/// From the sum over ranks of Pipeline::step_totals().
StepTotals step_totals_of(std::span<const double> values, int boundary, bool backward);

class Pipeline : private InstructionHandler {
 public:
  /// `stage`, whose parameters have memory, is reserved here. All ranks build their pipelines
  /// together. UserError on all of them when stages disagree on what crosses a boundary.
  Pipeline(const PipelineOptions& options, const PipelineShape& shape, const ProcessGrid& grid,
           ProgressThread& progress, Stage<float>& stage);

  /// A step's schedule. When it comes to `update`, the stage's gradients are those of the mean loss
  /// over the step's tokens, summed over replicas. `measure_errors`: also of the codecs.
  void train_step(const TokenDataset& data, const StepPlan& plan, bool measure_errors,
                  const std::function<void()>& update);
  /// Forward passes only; losses are left for loss_sum(). Changes nothing that training uses. The
  /// mode is one of the options' evaluation.modes. `next`: the step that will be evaluated next,
  /// whose rows of a shared embedding leave while this one runs; null: none. All stages of a
  /// replica are told of it.
  void evaluate_step(const TokenDataset& data, const StepPlan& plan,
                     EvaluationMode mode = EvaluationMode::plain, const StepPlan* next = nullptr);
  /// A text that grows, one at a time: begins one without tokens.
  void begin_text(EvaluationMode mode = EvaluationMode::plain);
  /// Appends tokens to it, up to T in all, and returns the logits of the last one; empty but on the
  /// last stage. Where continues_texts() and the shape said so, only these tokens pass through the
  /// pipeline, else the whole text does. `call` stands for the step.
  std::vector<float> continue_text(std::span<const std::int32_t> tokens, std::uint64_t call);

  /// Sum of the last step's losses of this replica's tokens; 0 but on the last stage.
  double loss_sum();
  /// Samples of later steps, for the caches' prefetching.
  void prefetch(std::span<const std::uint64_t> sample_ids);
  /// Adds what happened since the last call.
  void take_measurements(StepMeasurements& into);
  /// What this rank sent since then (in evaluations), which the next measurements leave out.
  struct SentBytes {
    double forward = 0;    ///< to the next stage
    double tied_rows = 0;  ///< from the last stage to the first
  };
  SentBytes take_sent_bytes();
  /// What this rank's senders with a target have sent so far, laid out so that a sum over all ranks
  /// has all of a run.
  std::vector<double> step_totals() const;
  /// What this rank's part remembers from step to step: the stage and the memories of all boundary
  /// ends, those of shared embeddings included. To be written and read between steps.
  std::vector<StatePart> state();
  /// All ranks together, after a restart without states of memories: what the spill files of both
  /// ends still have alike goes on.
  ResyncCounts resync_memories();
  /// Some end of this rank has found a damaged record of a sample and gone on without it: what the
  /// step under way computes does not count.
  bool has_damaged_records();
  /// All ranks together, between two steps, when one has: both ends of every boundary forget those
  /// samples. `spoiled_step`: they were used in the step that ends here; all ends forget that one's
  /// samples too, whose memories and errors have become those of a step that does not count.
  void forget_damaged_records(bool spoiled_step);
  /// Activation memories of this rank's ends, for tests and reports.
  std::vector<ActivationCache*> caches();

  /// Of the model's and the optimizer's kernels.
  const ExecSpace& exec() const { return instances_.compute; }

 private:
  void begin_training_step(const StepPlan& plan);
  void begin_evaluation_step(std::uint64_t step, EvaluationMode mode);
  void begin_step(std::uint64_t step);
  void load(const TokenDataset& data, const StepPlan& plan);
  void finish_load(double loss_scale);
  /// On the owner of a shared embedding: the index becomes that of the next step.
  void load_next_rows();
  void add_micro_batch(std::span<const std::uint64_t> ids, std::span<const int> lengths);
  MicroBatch micro_batch(int index) const;
  /// The micro-batch's crossing of a boundary; valid until its next one.
  Crossing& crossing(int index, CrossingKind kind, int boundary);
  ScheduleShape schedule_shape() const;
  void about_to(const Instruction& instruction) override;
  void send(const Transfer& message) override;
  void receive(const Transfer& message) override;
  void forward(const StagePass& pass) override;
  void backward(const StagePass& pass) override;
  void backward_inputs(const StagePass& pass) override;
  void backward_parameters(const StagePass& pass) override;
  Stage<float>::BucketFinal starts_reductions(const StagePass& pass);
  void reduce_zeros() override;
  /// Adds the token rows' gradients to the table's and starts its sum over replicas.
  void add_embedding_gradient() override;
  void finish_reductions() override;
  void update() override { (*update_)(); }
  /// Sums a bucket, as what is queued on compute leaves it, over replicas.
  void start_reduction(int bucket);
  void forward_only();
  /// Calls f(end, peer, tag) for all ends that have memories, in an order in which no two ranks
  /// wait for each other.
  template <class F>
  void for_memories(const F& f);
  void load_text(std::span<const std::int32_t> tokens);
  std::vector<float> logits_of_row(int row);

  const ExecutionInstances instances_ = make_execution_instances();
  const ProcessGrid& grid_;
  ProgressThread& progress_;
  TimeAccount& account_;
  Stage<float>& stage_;
  TokenEmbedding<float>* embedding_;  ///< null: none here
  PipelineShape shape_;
  BoundaryShape input_shape_, output_shape_;
  const Schedule& schedule_;
  int in_flight_;
  bool recomputes_ = false;
  bool embedding_is_remote_;  ///< rows of a shared embedding travel

  std::unique_ptr<CacheIoThread> cache_io_;
  std::optional<BoundarySender> send_forward_, send_backward_;
  std::optional<BoundaryReceiver> receive_forward_, receive_backward_;
  GradientAllReduce all_reduce_;
  std::optional<TokenIndex> index_;
  std::optional<EmbeddingExchange> tokens_;  ///< on the first and the last stage

  std::array<bool, 2> continues_texts_{};  ///< by EvaluationMode
  std::vector<std::int32_t> text_;
  EvaluationMode text_mode_ = EvaluationMode::plain;

  // The step that is loaded.
  Crossing step_;         ///< what all of its crossings have in common
  int step_tokens_ = 0;   ///< of its samples: T, or the new ones of a text
  int kept_tokens_ = -1;  ///< of the text before them; -1: samples are passed as a whole
  /// Of an evaluation, on the owner of a shared embedding: the step to come whose rows are sent
  /// while this one runs; null: none, or its index is there.
  const StepPlan* next_ = nullptr;
  const TokenDataset* next_data_ = nullptr;
  Crossing next_step_;
  bool rows_are_sent_ = false;               ///< of this step
  std::optional<std::uint64_t> rows_ahead_;  ///< the step that they were sent for
  const std::function<void()>* update_ = nullptr;
  double loss_scale_ = 0;
  std::vector<Crossing> micro_batches_;
  std::vector<int> valid_tokens_;      ///< [M*B], of the samples
  Vector<std::uint64_t> sample_id_;    ///< [M*B]
  Vector<std::int32_t> row_, target_;  ///< [M*B*T]
  MirrorVector<std::uint64_t> sample_id_host_;
  MirrorVector<std::int32_t> row_host_, target_host_;
  std::vector<std::int32_t> inputs_;  ///< [M*B*T], host
  MirrorVector<float> loss_host_;
};

}  // namespace deltapipe
