// SPDX-License-Identifier: BSD-3-Clause
// One rank's part of a pipeline: its stages, and the steps that run through them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/boundary/rank_links.hpp"
#include "comm/pipeline/pipeline_stage.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/pipeline/step_measurements.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "comm/transport/process_grid.hpp"
#include "core/cache/io_thread.hpp"
#include "core/data/dataset.hpp"
#include "core/stage/stage.hpp"

namespace deltapipe {

class Pipeline {
 public:
  /// `stages`, those of the rank in their order, whose parameters have memory, are reserved here
  /// and must outlive it. All ranks build their pipelines together. UserError on all of them when
  /// stages disagree on what crosses a boundary.
  Pipeline(const PipelineOptions& options, const PipelineShape& shape, const ProcessGrid& grid,
           ProgressThread& progress, std::span<Stage<float>* const> stages);
  /// For a rank with one stage.
  Pipeline(const PipelineOptions& options, const PipelineShape& shape, const ProcessGrid& grid,
           ProgressThread& progress, Stage<float>& stage);

  /// A step's schedule. When it comes to `update`, the gradients of all stages here are those of
  /// the mean loss over the step's tokens, summed over replicas. `measure_errors`: also of the
  /// codecs.
  void train_step(const TokenDataset& data, const StepPlan& plan, bool measure_errors,
                  const std::function<void()>& update);
  /// Forward passes only; loss_sum() or sample_scores() read the scores. Changes nothing that
  /// training uses. The mode is one of the options' evaluation.modes. `next`: the step that will be
  /// evaluated next, whose rows of a shared embedding leave while this one runs; null: none. All
  /// ranks of a replica pass the same one.
  void evaluate_step(const TokenDataset& data, const StepPlan& plan,
                     EvaluationMode mode = EvaluationMode::plain, const StepPlan* next = nullptr,
                     RowScore score = RowScore::loss);
  /// A text that grows, one at a time: begins one without tokens.
  void begin_text(EvaluationMode mode = EvaluationMode::plain);
  /// Appends tokens to it, up to T in all, and returns the logits of the last one; empty but on the
  /// rank of the last stage. Where continues_texts() and the shape said so, only these tokens pass
  /// through the pipeline, else the whole text does. `call` stands for the step.
  std::vector<float> continue_text(std::span<const std::int32_t> tokens, std::uint64_t call);

  /// Sum of the last step's losses of this replica's tokens; 0 but on the rank of the last stage.
  double loss_sum() { return stages_.back()->loss_sum(); }
  /// The last step's scores, summed over each sample's rows, in the order of its plan; empty but on
  /// the rank of the last stage.
  std::vector<double> sample_scores() { return stages_.back()->sample_scores(); }
  /// In evaluations of this mode a token's result depends on no token after it: what crosses
  /// boundaries is made of each token by itself.
  bool is_causal(EvaluationMode mode) const { return is_causal_[static_cast<std::size_t>(mode)]; }
  /// Samples of later steps, for the caches' prefetching.
  void prefetch(std::span<const std::uint64_t> sample_ids);
  /// Adds what happened since the last call.
  void take_measurements(StepMeasurements& into);
  /// Bytes that this rank sent since then (in evaluations), which the next measurements leave out.
  struct SentBytes {
    std::vector<double> forward;  ///< over each boundary of the pipeline
    double tied_rows = 0;         ///< from the last stage to the first
  };
  SentBytes take_sent_bytes();
  /// Totals of this rank's senders with a target, laid out so that a sum over all ranks
  /// has all of a run.
  std::vector<double> step_totals() const;
  /// State of this rank between steps, to be written and read there.
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

  /// Instance of the model's and the optimizer's kernels.
  const ExecSpace& exec() const { return instances_.compute; }

 private:
  std::vector<ScheduleShape> schedule_shapes() const;

  const ExecutionInstances instances_ = make_execution_instances();
  const ProcessGrid& grid_;
  ProgressThread& progress_;
  const Schedule& schedule_;
  std::array<bool, 2> is_causal_{};  ///< by EvaluationMode
  std::unique_ptr<CacheIoThread> cache_io_;
  RankLinks links_;
  std::vector<std::unique_ptr<PipelineStage>> stages_;  ///< those of this rank
  std::vector<InstructionHandler*> handlers_;           ///< by stage; null: elsewhere
};

}  // namespace deltapipe
