// SPDX-License-Identifier: BSD-3-Clause
// Reports of a training or an evaluation on standard output.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/checkpoint/checkpoints.hpp"
#include "app/deck/settings.hpp"
#include "app/output/run_content.hpp"
#include "app/training/best_evaluation.hpp"
#include "app/training/evaluation_record.hpp"
#include "app/training/run_totals.hpp"
#include "core/data/dataset.hpp"
#include "models/model.hpp"

namespace deltapipe {

/// ", 1200 prompts with answers", or nothing without them.
std::string answers_text(const DataSplit& data);
/// ", exact match 95.25 %", or nothing without answers.
std::string exact_match_text(const EvaluationFigures& figures);
/// Returns "NAME VALUE, NAME VALUE" of the task's metrics, with `fewer` of their digits.
std::string metrics_text(const EvaluationFigures& figures, int fewer = 1);

/// "epoch 1.00: validation loss ..."
std::string evaluation_text(const EvaluationRecord& record, EvaluationMode mode);

/// Reason that a run ended before its last step. `course`: of its evaluations.
std::string early_end_text(std::uint64_t steps_done, std::uint64_t steps, std::uint64_t patience,
                           const BestEvaluation& course);

/// Results of a finished run.
struct TrainingReport {
  RunTotals totals;
  std::string early_end;  ///< why training ended before its last step; empty: it did not
  ParameterCount parameters;
  std::optional<EvaluationRecord> last_evaluation;
  std::vector<RankMemoryRecord> memory;  ///< of all ranks
  Checkpoints::Totals checkpoints;
  BestEvaluation kept;             ///< the evaluation of the best model
  const char* targets = "tokens";  ///< Task::target_name()
};
void print_report(const Settings& settings, const TrainingReport& report);

}  // namespace deltapipe
