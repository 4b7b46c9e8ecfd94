// SPDX-License-Identifier: BSD-3-Clause
// Loss and exact match, with uncompressed activations or through the codecs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "app/output/run_file.hpp"
#include "comm/pipeline/pipeline.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// By mode; empty: not asked for.
struct Evaluations {
  std::uint64_t tokens = 0;  ///< predicted, without answers
  std::optional<EvaluationFigures> plain, codec;

  std::optional<EvaluationFigures>& of(EvaluationMode mode) {
    return mode == EvaluationMode::plain ? plain : codec;
  }
};

/// All bytes but those of sums over ranks.
std::uint64_t wire_bytes(const EvaluationFigures& figures);

/// Pipeline, data and layout of evaluations. The data outlives it.
struct EvaluationContext {
  Pipeline& pipeline;
  const DataSplit& data;
  StepPlanner::Layout layout;
  const EvaluationSettings& settings;
  const ProcessGrid& grid;
  ProgressThread& progress;
};

/// ", 1200 prompts with answers", or nothing without them.
std::string answers_text(const DataSplit& data);

/// Steps of the pipeline that an evaluation takes in all modes, if all answers are right.
std::uint64_t evaluation_steps(const EvaluationContext& context);

/// The loss of the validation set and, if there are answers, the share of prompts whose greedy
/// answer is the expected one, token by token, in each mode. All ranks call it together; every rank
/// gets the result. `stops`, if it is given, is called before each step and says on all ranks
/// before the same one that the evaluation stops there; it then has no result, and the pipeline
/// evaluates no more. UserError for a result that is not finite.
std::optional<Evaluations> evaluate(const EvaluationContext& context,
                                    const std::function<bool()>& stops = {});

}  // namespace deltapipe
