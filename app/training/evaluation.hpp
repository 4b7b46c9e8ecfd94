// SPDX-License-Identifier: BSD-3-Clause
// Loss, metrics and exact match, with uncompressed activations or through the codecs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "app/training/evaluation_record.hpp"
#include "comm/boundary/settings.hpp"
#include "comm/pipeline/pipeline.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/data/dataset.hpp"

namespace deltapipe {

/// Pipeline, data, task and layout of evaluations. They outlive it. Evaluates data.validation
/// and, if there are any, the prompts of data.answers.
struct EvaluationContext {
  Pipeline& pipeline;
  const DataSplit& data;
  const Task& task;
  StepPlanner::Layout layout;
  const EvaluationSettings& settings;
  const ProcessGrid& grid;
  ProgressThread& progress;
};

/// Returns the steps of the pipeline for an evaluation in all modes if all answers are right.
std::uint64_t evaluation_steps(const EvaluationContext& context);

/// Called before each step of an evaluation. True, on all ranks before the same step: the
/// evaluation stops there.
using StopsEvaluation = std::function<bool()>;

/// Returns loss and metrics of the validation set and, if there are answers, the share of prompts
/// whose greedy answer is the expected one, token by token, in each mode; without step, epoch and
/// seconds. All ranks call it together; every rank gets the result. Returns nothing if `stops`
/// (which may be empty) ended it; the pipeline must not evaluate again then. Throws UserError if a
/// result is not finite.
std::optional<EvaluationRecord> evaluate(const EvaluationContext& context,
                                         const StopsEvaluation& stops = {});

}  // namespace deltapipe
