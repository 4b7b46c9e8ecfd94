// SPDX-License-Identifier: BSD-3-Clause
// One stage's part of a pipeline: the model's stage, its boundary ends, and the instructions of the
// steps that use them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/boundary/boundary.hpp"
#include "comm/boundary/memory_resync.hpp"
#include "comm/boundary/rank_links.hpp"
#include "comm/pipeline/common_exchange.hpp"
#include "comm/pipeline/embedding_exchange.hpp"
#include "comm/pipeline/pipeline_rank.hpp"
#include "comm/pipeline/rank_sums.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/pipeline/stage_sums.hpp"
#include "comm/pipeline/step_measurements.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "comm/pipeline/step_samples.hpp"
#include "comm/pipeline/token_index.hpp"
#include "comm/schedule/executor.hpp"
#include "comm/schedule/schedule.hpp"
#include "comm/transport/process_grid.hpp"
#include "core/base/observe/trace.hpp"
#include "core/cache/io_thread.hpp"
#include "core/data/dataset.hpp"
#include "core/stage/stage.hpp"
#include "core/stage/task.hpp"

namespace deltapipe {

class PipelineStage final : public InstructionHandler {
 public:
  /// Builds the part of `stage`, the rank's `local`th, whose parameters have memory, and reserves
  /// it.
  PipelineStage(const PipelineOptions& options, const PipelineShape& shape,
                const PipelineRank& rank, int local, Stage<float>& stage);

  // One of the following loads a step; its program runs next.

  /// Loads a training step. At the rank's only `update`, the gradients of its stages are those of
  /// the mean loss over the step's tokens, summed over replicas. `measure_errors` also measures the
  /// codecs' errors.
  void load_training_step(const Dataset& data, const StepPlan& plan, bool measure_errors,
                          const std::function<void()>& update);
  /// Loads an evaluation step, whose scores loss_sum() or sample_scores() return. Does not change
  /// anything that training uses. On the last stage, returns how the program handles rows of a
  /// shared embedding. For `next` see Pipeline::evaluate_step().
  EvaluationRows load_evaluation_step(const Dataset& data, const StepPlan& plan,
                                      EvaluationMode mode, const StepPlan* next, RowScore score);
  /// Begins a text without tokens. Only one text grows at a time.
  void begin_text(EvaluationMode mode);
  /// Appends tokens to the text. `call` serves as the step.
  void load_text_step(std::span<const std::int32_t> tokens, std::uint64_t call);
  /// Returns the logits of the text's last token after the step's program; on the last stage.
  std::vector<float> text_logits();
  /// Returns the shape of the loaded step.
  ScheduleShape schedule_shape() const;

  /// Returns the sums over replicas of the loaded step.
  const StageSums& sums() const { return sums_; }

  /// Returns the sum of the last step's losses over this replica's targets; 0 except on the last
  /// stage.
  double loss_sum();
  /// See Pipeline.
  void add_scores(const Task& task, std::span<double> sums);
  /// Returns the last step's scores, summed over each sample's rows, in the order of its plan;
  /// empty except on the last stage.
  std::vector<double> sample_scores();
  /// Returns the last step's scores, micro-batch by micro-batch; empty except on the last stage.
  std::vector<float> row_scores();
  /// Announces samples of later steps to the caches for prefetching.
  void prefetch(std::span<const std::uint64_t> sample_ids);
  /// Adds what was measured at the stage since the last call, without its rank's times.
  /// `is_outer`: of an outer step, which follows those of the step itself.
  void take_measurements(StepMeasurements& into, bool is_outer = false);
  /// Adds the bytes that it has sent since then (in evaluations) to the entry of its boundary and
  /// to that of token rows; the next measurements leave them out. Gradients do not count.
  void take_sent_bytes(std::span<double> by_boundary, double& tied_rows);
  /// Fills in what its senders with a target have sent so far, in the layout of
  /// Pipeline::step_totals().
  void add_step_totals(std::span<double> values) const;
  /// Returns what it retains from step to step: the model's stage and the memories of all boundary
  /// ends, including those of shared embeddings.
  std::vector<StatePart> state();

  // See Pipeline. A rank calls its stages in their order.
  ResyncCounts resync_memories();
  bool has_damaged_records();
  void forget_damaged_records(bool spoiled_step);
  std::vector<ActivationCache*> caches();

 private:
  const ExecSpace& exec() const { return instances_.compute; }
  void begin_training_step(const StepPlan& plan, bool measure_errors);
  void begin_evaluation_step(std::uint64_t step, EvaluationMode mode);
  void begin_step(std::uint64_t step);
  void load(const Dataset& data, const StepPlan& plan);
  void finish_load(double loss_scale);
  /// On the owner of a shared embedding: rebuilds the index for the next step.
  void load_next_rows();
  void add_micro_batch(std::span<const std::uint64_t> ids, std::span<const int> lengths);
  MicroBatch micro_batch(int index) const;
  int samples(int micro_batch) const {
    return static_cast<int>(micro_batches_[micro_batch].samples());
  }
  /// Returns the rows of a micro-batch at an end of this shape.
  int rows(int micro_batch, const BoundaryShape& shape) const {
    return samples(micro_batch) *
           (shape_.pads_to_longest ? batch_tokens_[micro_batch] : shape.tokens);
  }
  /// Calls send(rows) with the rows of a micro-batch, padded to T rows a sample.
  template <class Send>
  void send_padded(int micro_batch, const MatrixRef<float>& x, const Send& send);
  /// Calls receive(rows) for the same and copies the micro-batch's own rows to x.
  template <class Receive>
  void receive_padded(int micro_batch, const MatrixRef<float>& x, const Receive& receive);
  /// Returns the views of the samples' images at this step, in the places of a boundary.
  std::vector<RowView> views(std::span<const std::uint64_t> ids, const RowGrid& grid) const;
  /// Returns the micro-batch's crossing of a boundary; valid until its next one.
  Crossing& crossing(int index, CrossingKind kind, int boundary);
  void about_to(const Instruction& instruction) override;
  void send(const Transfer& message) override;
  void receive(const Transfer& message) override;
  TraceScope trace_of(const char* what, const StagePass& pass) const;
  void forward(const StagePass& pass) override;
  void backward(const StagePass& pass) override;
  void backward_inputs(const StagePass& pass) override;
  void backward_parameters(const StagePass& pass) override;
  Stage<float>::BucketFinal starts_reductions(const StagePass& pass);
  void reduce_zeros() override { sums_.start_zeros(); }
  /// Adds the token rows' gradients to the table's and starts its sum over replicas.
  void add_embedding_gradient() override;
  void add_common_gradient() override;
  void finish_reductions() override { rank_sums_.finish_step(); }
  void update() override { (*update_)(); }
  template <class Take>
  void read_scores(const Take& take);
  /// Calls f(end, peer, tag) for all ends that have memories, in an order that cannot deadlock.
  template <class F>
  void for_memories(const F& f);
  void load_text(std::span<const std::int32_t> tokens);

  const ExecutionInstances instances_;
  const ProcessGrid& grid_;
  StagePlace place_;
  ProgressThread& progress_;
  TimeAccount& account_;
  Stage<float>& stage_;
  TokenEmbedding<float>* embedding_;  ///< null: not on this stage
  CommonParameters<float>* common_;   ///< null: none are trained
  PipelineShape shape_;
  BoundaryShape input_shape_, output_shape_;
  int in_flight_;
  bool recomputes_ = false;
  bool embedding_is_remote_;  ///< rows of a shared embedding travel

  std::optional<BoundarySender> send_forward_, send_backward_;
  std::optional<BoundaryReceiver> receive_forward_, receive_backward_;
  const MemoryMoves moves_;
  StageSums sums_;
  RankSums& rank_sums_;
  std::optional<TokenIndex> index_;
  std::optional<EmbeddingExchange> tokens_;        ///< set on the first and the last stage
  std::optional<CommonExchange> common_exchange_;  ///< set if there are several stages

  std::array<bool, 2> continues_texts_{};  ///< indexed by EvaluationMode
  std::vector<std::int32_t> text_;
  EvaluationMode text_mode_ = EvaluationMode::plain;

  // The loaded step.
  Crossing step_;        ///< common part of all its crossings
  int step_tokens_ = 0;  ///< tokens of each of its samples: T, or a text's new ones
  /// Tokens of each micro-batch's samples: step_tokens_, or padded_tokens() of the longest.
  std::vector<int> batch_tokens_;
  int kept_tokens_ = -1;  ///< tokens of the text before them; -1: whole samples pass
  /// In an evaluation on the owner of a shared embedding: the next step, whose rows leave during
  /// this one. Null: there is no such step, or its index is already loaded.
  const StepPlan* next_ = nullptr;
  const Dataset* next_data_ = nullptr;
  Crossing next_step_;
  bool rows_are_sent_ = false;               ///< rows of this step
  std::optional<std::uint64_t> rows_ahead_;  ///< step whose rows were sent ahead
  const std::function<void()>* update_ = nullptr;
  double loss_scale_ = 0;
  RowScore score_ = RowScore::loss;
  std::vector<Crossing> micro_batches_;
  Matrix<float> padded_NC_;  ///< see StagePlan
  StepSamples samples_;
  MirrorVector<float> score_host_;
};

}  // namespace deltapipe
