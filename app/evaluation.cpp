// SPDX-License-Identifier: BSD-3-Clause
#include "app/evaluation.hpp"

#include <algorithm>
#include <cmath>

#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/base/number_text.hpp"

namespace deltapipe {

EvaluationResult evaluate(Pipeline& pipeline, const TokenDataset& data, const StepPlanner& planner,
                          const ProcessGrid& grid, ProgressThread& progress) {
  const int stages = grid.stages();
  // Losses, bytes of each boundary, bytes of token rows.
  std::vector<double> values(static_cast<std::size_t>(stages) + 1, 0);
  double& sum = values.front();
  for (std::uint64_t step = 0; step < planner.steps_per_epoch(); ++step) {
    progress.check();
    const StepPlan plan = planner.plan(step, grid.replica());
    pipeline.evaluate_step(data, plan);
    sum += pipeline.loss_sum();
  }
  const Pipeline::SentBytes sent = pipeline.take_sent_bytes();
  if (!grid.last()) values[1 + static_cast<std::size_t>(grid.stage())] = sent.forward;
  values.back() = sent.tied_rows;
  all_reduce(progress, grid.world(), values, Reduction::sum);
  EvaluationResult result;
  result.tokens = data.tokens();
  result.loss = sum / static_cast<double>(std::max<std::uint64_t>(1, result.tokens));
  for (int b = 0; b + 1 < stages; ++b)
    result.forward_bytes.push_back(
        static_cast<std::uint64_t>(values[1 + static_cast<std::size_t>(b)]));
  result.tied_row_bytes = static_cast<std::uint64_t>(values.back());
  if (!std::isfinite(result.loss))
    throw UserError({.what = "the loss of the evaluation is not finite",
                     .value = number_text("%g", result.loss),
                     .remedy = "the model has diverged: evaluate weights from before that, or "
                               "train with a lower learning rate"});
  result.perplexity = std::exp(result.loss);
  return result;
}

}  // namespace deltapipe
