// SPDX-License-Identifier: BSD-3-Clause
// The start of a training in steps: files of an earlier start, inputs, plan, output, and the run
// itself. Every function is collective, returns a complete struct, and throws UserError if the run
// cannot start.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "app/checkpoint/checkpoints.hpp"
#include "app/checkpoint/claimed_directories.hpp"
#include "app/checkpoint/restart.hpp"
#include "app/checkpoint/run_spill_files.hpp"
#include "app/checkpoint/spill_references.hpp"
#include "app/deck/settings.hpp"
#include "app/output/former_output.hpp"
#include "app/output/progress_display.hpp"
#include "app/output/run_output.hpp"
#include "app/preflight/memory_prediction.hpp"
#include "app/session/session.hpp"
#include "app/training/best_evaluation.hpp"
#include "app/training/training_run.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/base/observe/trace.hpp"
#include "core/data/dataset.hpp"

namespace deltapipe {

/// Removes the files that restarts of a finished run would read. The run may have been killed
/// before it removed them.
void clear_finished_run(const Settings& settings, const FormerRun& former,
                        ClaimedDirectories& claimed, const ProcessGrid& grid,
                        ProgressThread& progress);

/// Returns the checkpoint from which the run resumes; none: it starts from scratch.
std::optional<Restart> find_start(const Settings& settings, const FormerRun& former,
                                  ClaimedDirectories& claimed, const ProcessGrid& grid,
                                  ProgressThread& progress);

struct TrainingInputs {
  ModelPlan model;
  DataSplit data;
};
TrainingInputs open_inputs(const Settings& settings, const std::optional<Restart>& restart,
                           const ProcessGrid& grid, ProgressThread& progress);

/// A run that fits the machines and nothing on the disk.
struct RunPlan {
  std::string run_id;  ///< the same for all starts of a run
  TrainingPlan training;
  RankMemory predicted;
  CacheOwner owner;               ///< of spill files
  FormerSpillFiles former_files;  ///< of the checkpoint
  bool is_same_layout = false;    ///< as the checkpoint's: ranks continue with their spill files
};
RunPlan plan_run(const Settings& settings, const TrainingInputs& inputs,
                 const std::optional<Restart>& restart, const ProcessGrid& grid,
                 ProgressThread& progress);

RunOutput open_output(const Settings& settings, const TrainingInputs& inputs, const RunPlan& plan,
                      const std::optional<Restart>& restart, const ProcessGrid& grid,
                      ProgressThread& progress);

/// The evaluations of a run so far.
struct EvaluationCourse {
  BestEvaluation all;  ///< those in run.h5
  /// The one whose model is kept. An earlier start may have found it in steps that are repeated:
  /// its model stays unless another one is better.
  BestEvaluation kept;
};
/// The evaluations whose losses are compared with each other.
EvaluationMode counted_mode(const EvaluationSettings& settings);

/// A run with all of its parts.
struct StartedRun {
  const Settings& settings;
  const ProcessGrid& grid;
  ProgressThread& progress;
  const ClaimedDirectories& claimed;
  const std::optional<Restart>& restart;
  const TrainingInputs& inputs;
  const RunPlan& plan;
  RunOutput& output;
  EvaluationCourse course;
  std::unique_ptr<TrainingRun> training;
  RunSpillFiles spill_files;
  ProgressDisplay display;
  std::unique_ptr<Checkpoints> checkpoints;  ///< null: the run writes none

  /// Returns the step from which this start resumes.
  std::uint64_t first_step() const { return restart ? restart->marker.step : 0; }
};

/// Builds the run, restores its state and says what is trained. The time limit counts from `begin`.
StartedRun start_run(const Settings& settings, ClaimedDirectories& claimed,
                     const std::optional<Restart>& restart, const TrainingInputs& inputs,
                     const RunPlan& plan, Stages stages, RunOutput& output, TimePoint begin,
                     const ProcessGrid& grid, ProgressThread& progress);

}  // namespace deltapipe
