// SPDX-License-Identifier: BSD-3-Clause
// Model and data of a command that runs forward passes over samples: evaluate, predict.
#pragma once

#include <memory>

#include "app/deck/settings.hpp"
#include "app/session/session.hpp"
#include "app/training/stages.hpp"
#include "comm/pipeline/pipeline.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/data/dataset.hpp"

namespace deltapipe {

struct EvaluationInputs {
  ModelPlan plan;
  DataSplit data;  ///< with validation samples
  Stages stages;   ///< of this rank, without memory for training
};

/// Reads the deck's model and data, compares them between ranks and prints warnings on rank 0. All
/// ranks call it together. Throws UserError.
EvaluationInputs open_evaluation(const Settings& settings, const ProcessGrid& grid,
                                 ProgressThread& progress);

/// Returns the pipeline of an evaluation; `options` and `inputs` outlive it.
std::unique_ptr<Pipeline> make_evaluation_pipeline(const PipelineOptions& options,
                                                   const EvaluationInputs& inputs,
                                                   const ProcessGrid& grid,
                                                   ProgressThread& progress);

}  // namespace deltapipe
