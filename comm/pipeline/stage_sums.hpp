// SPDX-License-Identifier: BSD-3-Clause
// A stage's sums over its replicas: which values are summed in a step, and when.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/pipeline/pipeline_rank.hpp"
#include "comm/pipeline/settings.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/pipeline/step_measurements.hpp"
#include "comm/replicas/replica_sum.hpp"
#include "comm/replicas/settings.hpp"
#include "core/stage/parameters.hpp"
#include "core/stage/stage.hpp"

namespace deltapipe {

/// Sums gradients in every step or, by the settings, AdamW's first moments or the changes of
/// parameters. Whenever replicas exchange one of these, they also average the statistics of batch
/// normalisation, in fp32. A statistic is linear in those of its batches: with as many
/// micro-batches at all replicas, averages after several steps are the same as averages of every
/// step.
///
/// Work on the parameters is queued on the instance `compute`; sums run on `copy`.
class StageSums {
 public:
  /// `local`: the stage is the rank's `local`th.
  StageSums(const PipelineOptions& options, const PipelineShape& shape, const PipelineRank& rank,
            int local, Stage<float>& stage);

  /// Begins a training step. `steps_done`: before it.
  void begin(std::uint64_t steps_done, double epoch, bool measures_errors);
  /// Returns true if the step sums gradients. Otherwise it sums first moments or, in outer steps,
  /// changes of parameters, after the backward passes.
  bool sums_gradients() const { return !sums_moments_ && settings_.local_steps == 0; }
  bool sums_moments() const { return sums_moments_; }
  bool sums_changes() const { return sums_changes_; }

  /// Starts the sum of a bucket's gradients, which are final.
  void start(int bucket);
  /// Starts all sums on a replica without samples, whose gradients are zero.
  void start_zeros();
  /// Continues the sums as far as that is possible without waiting.
  void poll();

  /// Starts what a step's passes have not started. Returns the step's sums of gradients and
  /// statistics, which complete() and finish() end. See RankSums.
  std::vector<ReplicaSum*> start_rest();
  /// Starts the sum of the first moments, in place.
  std::vector<ReplicaSum*> start_moments();
  /// Starts the sum of the changes of parameters, in place of gradients.
  std::vector<ReplicaSum*> start_changes();
  /// Waits for started sums, of this and of other stages.
  void complete(std::span<ReplicaSum* const> sums);
  /// Hands the results of this stage's sums to its kernels.
  void finish(std::span<ReplicaSum* const> sums);

  /// Adds what was sent and measured since the last call.
  void take_measurements(StepMeasurements& into);
  std::vector<StatePart> state(const ExecSpace& exec);
  /// Forgets the errors of a step that does not count.
  void reset(const ExecSpace& exec) { gradient_sum_->reset(exec); }

 private:
  void clear_padding(const SumBucket& bucket);
  void start_statistics();
  void start_at_once(ReplicaSum& sum, const std::vector<SumBucket>& buckets);

  ProgressThread& progress_;
  const ExecutionInstances instances_;
  const ReplicaSettings settings_;
  const std::uint64_t steps_;  ///< of the run
  const int stage_, rank_, replica_, replicas_;
  const ParameterArena<float>& parameters_;
  std::vector<SumBucket> gradients_, moments_;
  std::unique_ptr<ReplicaSum> gradient_sum_;
  std::unique_ptr<ReplicaSum> moment_sum_;     ///< null: moments are never summed
  std::unique_ptr<ReplicaSum> statistic_sum_;  ///< null: no statistics, or one replica
  std::uint64_t moment_bytes_ = 0;             ///< bytes that all replicas send in a sum of moments
  SumStatistics moment_errors_;  ///< of the last measured sum, until they are reported

  bool sums_moments_ = false;
  bool sums_changes_ = false;
  bool has_started_statistics_ = false;
};

}  // namespace deltapipe
