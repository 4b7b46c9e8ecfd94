// SPDX-License-Identifier: BSD-3-Clause
#include "app/evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/base/number_text.hpp"

namespace deltapipe {

namespace {

std::optional<EvaluationFigures> evaluate(Pipeline& pipeline, const TokenDataset& data,
                                          const StepPlanner& planner, EvaluationMode mode,
                                          const ProcessGrid& grid, ProgressThread& progress,
                                          const std::function<bool()>& stops) {
  const int stages = grid.stages();
  // Losses, bytes of each boundary, bytes of token rows.
  std::vector<double> values(static_cast<std::size_t>(stages) + 1, 0);
  double& sum = values.front();
  const std::uint64_t steps = planner.steps_per_epoch();
  StepPlan plan = planner.plan(0, grid.replica());
  for (std::uint64_t step = 0; step < steps; ++step) {
    progress.check();
    if (stops && stops()) return std::nullopt;
    StepPlan next;
    if (step + 1 < steps) next = planner.plan(step + 1, grid.replica());
    pipeline.evaluate_step(data, plan, mode, step + 1 < steps ? &next : nullptr);
    sum += pipeline.loss_sum();
    plan = std::move(next);
  }
  const Pipeline::SentBytes sent = pipeline.take_sent_bytes();
  std::copy(sent.forward.begin(), sent.forward.end(), values.begin() + 1);
  values.back() = sent.tied_rows;
  all_reduce(progress, grid.world(), values, Reduction::sum);
  EvaluationFigures figures;
  figures.loss = sum / static_cast<double>(std::max<std::uint64_t>(1, data.tokens()));
  for (int b = 0; b + 1 < stages; ++b)
    figures.forward_bytes.push_back(
        static_cast<std::uint64_t>(values[1 + static_cast<std::size_t>(b)]));
  figures.tied_row_bytes = static_cast<std::uint64_t>(values.back());
  figures.collective_bytes = progress.take_collective_bytes();
  if (!std::isfinite(figures.loss))
    throw UserError({.what = "the loss of the evaluation is not finite",
                     .value = number_text("%g", figures.loss),
                     .remedy = "the model has diverged: evaluate weights from before that, or "
                               "train with a lower learning rate"});
  figures.perplexity = std::exp(figures.loss);
  return figures;
}

}  // namespace

std::uint64_t wire_bytes(const EvaluationFigures& figures) {
  return std::accumulate(figures.forward_bytes.begin(), figures.forward_bytes.end(),
                         figures.tied_row_bytes);
}

std::optional<Evaluations> evaluate(Pipeline& pipeline, const TokenDataset& data,
                                    const StepPlanner& planner, const EvaluationSettings& settings,
                                    const ProcessGrid& grid, ProgressThread& progress,
                                    const std::function<bool()>& stops) {
  Evaluations result;
  result.tokens = data.tokens();
  for (const EvaluationMode mode : settings.modes) {
    result.of(mode) = evaluate(pipeline, data, planner, mode, grid, progress, stops);
    if (!result.of(mode)) return std::nullopt;
  }
  return result;
}

}  // namespace deltapipe
