// SPDX-License-Identifier: BSD-3-Clause
// One rank's part of a training run: optimizer steps, evaluations and their totals. It prints
// nothing; what happens is in return values and goes to a StepObserver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "app/training/evaluation.hpp"
#include "app/training/run_totals.hpp"
#include "app/training/stages.hpp"
#include "comm/boundary/memory_resync.hpp"
#include "comm/pipeline/pipeline.hpp"
#include "comm/pipeline/step_measurements.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "comm/pipeline/step_record.hpp"
#include "comm/replicas/replica_check.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/base/error.hpp"
#include "core/base/state/state.hpp"
#include "core/data/dataset.hpp"
#include "models/model.hpp"
#include "models/optimizer.hpp"
#include "models/outer_optimizer.hpp"

namespace deltapipe {

/// Everything that a training run is built from, except for its model and data.
struct TrainingPlan {
  PipelineOptions pipeline;
  PipelineShape shape;  ///< with the steps of the run and the partition
  OptimizerSettings optimizer;
  bool shuffle = true;
  std::uint64_t measure_every = 10;  ///< steps between measurements of the codecs' errors
};

/// Functions that a step calls on every rank; empty ones are left out.
struct StepObserver {
  /// Returns values that travel with the sum over all ranks at the end of the step, the same number
  /// on all ranks. `hear` receives the sums.
  std::function<std::vector<double>()> notes;
  std::function<void(std::span<const double> sums)> hear;
  /// Damaged records of samples were forgotten: the step is repeated with first visits.
  std::function<void()> forgot_records;
  /// The step is complete. It counts as the step under way for the StepWatch until this returns.
  std::function<void(const StepRecord&)> done;
};

/// Thrown on all ranks by a step whose loss or gradient is not finite. Nothing was updated.
class Diverged : public UserError {
 public:
  using UserError::UserError;
};

class TrainingRun {
 public:
  /// Stops the clock of the training (ProgressThread::account()) during its lifetime, for
  /// evaluations and output. Pauses may be nested.
  class Pause {
   public:
    explicit Pause(TrainingRun& run);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    TrainingRun& run_;
  };

  /// Builds the run, on all ranks of the grid together. `stages` are those of make_stages(), with
  /// values. Model, data, grid and progress must outlive it.
  TrainingRun(TrainingPlan plan, const Model& model, Stages stages, const Dataset& data,
              const ProcessGrid& grid, ProgressThread& progress);
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  /// Runs one optimizer step: forward and backward passes, the global gradient norm, clipping and
  /// the update. If a rank has read a damaged record from an activation cache, all ranks forget it
  /// and repeat the step. Throws Diverged, and UserError if every attempt is spoiled or replicas'
  /// weights differ.
  StepRecord step(const StepObserver& observer = {});
  /// Starts the clock of the training. The first step() calls it.
  void start();
  /// Stops the clock for good; totals().seconds then includes everything.
  void end();

  /// Evaluates as evaluate() does, and adds to the totals.
  std::optional<EvaluationRecord> evaluate(const DataSplit& data,
                                           const StopsEvaluation& stops = {});
  /// Returns the context of evaluate(); `data` must outlive it.
  EvaluationContext evaluation_context(const DataSplit& data);

  /// Returns true if all replicas have the same parameters after `steps_done` steps. Between outer
  /// steps (ReplicaSettings::local_steps) they differ. Evaluations and checkpoints require it.
  bool replicas_agree(std::uint64_t steps_done) const {
    return plan_.pipeline.replicas.replicas_agree(steps_done, steps());
  }
  /// Returns the number of steps until replicas agree again.
  std::uint64_t steps_to_agreement(std::uint64_t steps_done) const {
    return plan_.pipeline.replicas.steps_to_agreement(steps_done, steps());
  }
  /// Compares the weights of all replicas unless this was done after the same step or
  /// pipeline.verify_replicas is 0. step() calls it when it is due.
  void compare_replicas();
  /// Looks for damaged records in files of activation caches, on all ranks together. Returns true
  /// if there are some, which both ends have then forgotten.
  bool forget_damaged_records();
  /// Calls Pipeline::resync_memories(). Returns the sum over all ranks.
  ResyncCounts resync_memories();

  /// Returns all that this rank retains from step to step: the parts of the pipeline, the
  /// optimizer's moments and the totals. Write it between steps and read it before the first one.
  std::vector<StatePart> state();
  RunTotals& totals() { return totals_; }
  const RunTotals& totals() const { return totals_; }

  Pipeline& pipeline() { return pipeline_; }
  const Stages& stages() const { return stages_; }
  const StepPlanner& planner() const { return planner_; }
  std::uint64_t steps() const { return plan_.shape.steps; }  ///< of the whole run
  /// Returns the passes over the training data after `steps` steps, with fraction.
  double epochs_after(std::uint64_t steps) const;

 private:
  void announce(std::uint64_t step);
  void compare_replicas(std::uint64_t steps_done);
  bool update(const StepPlan& plan, const StepObserver& observer, StepRecord& record);
  void take_outer_step();
  void measure_outer_step(StepRecord& record);
  void update_from_moments(std::uint64_t step, double learning_rate, double factor);
  bool share(const StepPlan& plan, const StepObserver& observer, StepRecord& record);
  void put_squared_norms(std::span<double> norms);
  void sum_over_ranks(std::vector<double>& values);

  TrainingPlan plan_;
  const Dataset& data_;
  const Task& task_;
  const ProcessGrid& grid_;
  ProgressThread& progress_;
  Stages stages_;
  StepPlanner planner_;
  Pipeline pipeline_;
  std::vector<Optimizer<float>> optimizers_;             ///< one per stage
  std::vector<OuterOptimizer<float>> outer_optimizers_;  ///< the same; empty: no local steps
  std::vector<ReplicaCheck> replica_checks_;             ///< one per stage
  /// Position of each stage's first tensor in the order of the model, and the number of tensors.
  std::vector<std::size_t> tensors_before_;
  std::size_t tensors_ = 0;
  std::uint64_t announced_ = 0;  ///< steps whose samples the caches know
  std::optional<std::uint64_t> compared_after_;
  RunTotals totals_;
  std::optional<StepMeasurements> measured_;    ///< of the last step, all ranks
  std::optional<StepMeasurements> unrecorded_;  ///< of attempts that did not count
  bool is_started_ = false;
  int pauses_ = 0;
};

}  // namespace deltapipe
