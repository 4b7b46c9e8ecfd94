// SPDX-License-Identifier: BSD-3-Clause
// One rank's part of a pipeline: its stages and the steps that run through them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/boundary/rank_links.hpp"
#include "comm/pipeline/pipeline_stage.hpp"
#include "comm/pipeline/rank_sums.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/pipeline/step_measurements.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "comm/transport/process_grid.hpp"
#include "core/cache/io_thread.hpp"
#include "core/data/dataset.hpp"
#include "core/stage/stage.hpp"
#include "core/stage/task.hpp"

namespace deltapipe {

class Pipeline {
 public:
  /// Builds the pipeline from the rank's stages, in their order. Their parameters have memory;
  /// their workspaces are reserved here. The stages must outlive the pipeline. All ranks build
  /// their pipelines together. Throws UserError on all of them if stages disagree on what crosses a
  /// boundary.
  Pipeline(const PipelineOptions& options, const PipelineShape& shape, const ProcessGrid& grid,
           ProgressThread& progress, std::span<Stage<float>* const> stages);

  /// Runs a training step in the order of the schedule. It calls `update` when the gradients of all
  /// stages of this rank are those of the mean loss over the step's tokens, summed over replicas.
  /// `measure_errors` also measures the codecs' errors.
  void train_step(const Dataset& data, const StepPlan& plan, bool measure_errors,
                  const std::function<void()>& update);
  /// Runs forward passes only; loss_sum() or sample_scores() return the scores. Does not change
  /// anything that training uses. The mode is one of the options' evaluation.modes. `next` is the
  /// step that will be evaluated next, or null. Its rows of a shared embedding leave during this
  /// step. All ranks of a replica pass the same step.
  void evaluate_step(const Dataset& data, const StepPlan& plan,
                     EvaluationMode mode = EvaluationMode::plain, const StepPlan* next = nullptr,
                     RowScore score = RowScore::loss);
  /// Begins a text without tokens. Only one text grows at a time.
  void begin_text(EvaluationMode mode = EvaluationMode::plain);
  /// Appends tokens to the text, up to T in all, and returns the logits of the last one. The result
  /// is empty except on the rank of the last stage. If continues_texts() and the shape allow it,
  /// only these tokens pass through the pipeline, otherwise the whole text. `call` serves as the
  /// step.
  std::vector<float> continue_text(std::span<const std::int32_t> tokens, std::uint64_t call);

  /// See StageSums. All stages of all ranks return the same.
  bool sums_gradients() const { return stages_.front()->sums().sums_gradients(); }
  bool sums_moments() const { return stages_.front()->sums().sums_moments(); }
  bool sums_changes() const { return stages_.front()->sums().sums_changes(); }
  void sum_moments() { sums_.sum_moments(); }
  void sum_changes() { sums_.sum_changes(); }

  /// Returns the sum of the last step's losses over this replica's targets; 0 except on the rank of
  /// the last stage.
  double loss_sum() { return stages_.back()->loss_sum(); }
  /// Adds what the last evaluation step contributes to a task's sums, whose score was evaluated;
  /// only on the rank of the last stage.
  void add_scores(const Task& task, std::span<double> sums) {
    stages_.back()->add_scores(task, sums);
  }
  /// Returns the last step's scores, summed over each sample's rows, in the order of its plan;
  /// empty except on the rank of the last stage.
  std::vector<double> sample_scores() { return stages_.back()->sample_scores(); }
  /// Returns the last step's scores, micro-batch by micro-batch; empty except on the rank of the
  /// last stage.
  std::vector<float> row_scores() { return stages_.back()->row_scores(); }
  /// Returns true if a token's result does not depend on later tokens in evaluations of this mode,
  /// since what crosses boundaries is computed from each token alone.
  bool is_causal(EvaluationMode mode) const { return is_causal_[static_cast<std::size_t>(mode)]; }
  /// Announces samples of later steps to the caches for prefetching.
  void prefetch(std::span<const std::uint64_t> sample_ids);
  /// Adds what was measured since the last call. `is_outer`: of an outer step of the replicas,
  /// which follows those of the step itself.
  void take_measurements(StepMeasurements& into, bool is_outer = false);
  /// Bytes that this rank sent since the last measurements (in evaluations); the next measurements
  /// leave them out.
  struct SentBytes {
    std::vector<double> forward;  ///< one entry per boundary of the pipeline
    double tied_rows = 0;         ///< rows from the last stage to the first
  };
  SentBytes take_sent_bytes();
  /// Returns what this rank's senders with a target have sent so far. The sum over all ranks is the
  /// total of the run.
  std::vector<double> step_totals() const;
  /// Returns what this rank retains from step to step. Write and read it between steps.
  std::vector<StatePart> state();
  /// Restores memories after a restart from a checkpoint without them, on all ranks together.
  /// Retains the memories that the spill files of both ends have in common.
  ResyncCounts resync_memories();
  /// Returns true if an end of this rank has found a damaged record of a sample and continued
  /// without it: the current step's results do not count.
  bool has_damaged_records();
  /// Makes both ends of every boundary forget samples with damaged records. All ranks call it
  /// together between two steps after a rank has found one. `spoiled_step`: the step that ends here
  /// used such records. All ends then also forget the samples of that step, because their memories
  /// and errors come from a step that does not count.
  void forget_damaged_records(bool spoiled_step);
  /// Returns the activation memories of this rank's ends, for tests and reports.
  std::vector<ActivationCache*> caches();

  /// Returns the space of the model's and the optimizer's kernels.
  const ExecSpace& exec() const { return instances_.compute; }

 private:
  std::vector<ScheduleShape> schedule_shapes() const;

  const ExecutionInstances instances_ = make_execution_instances();
  const ProcessGrid& grid_;
  ProgressThread& progress_;
  const Schedule& schedule_;
  std::array<bool, 2> is_causal_{};  ///< indexed by EvaluationMode
  std::unique_ptr<CacheIoThread> cache_io_;
  RankLinks links_;
  RankSums sums_;
  std::vector<std::unique_ptr<PipelineStage>> stages_;  ///< stages of this rank
  std::vector<InstructionHandler*> handlers_;           ///< indexed by stage; null: on another rank
};

}  // namespace deltapipe
