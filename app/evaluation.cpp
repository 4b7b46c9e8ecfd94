#include "app/evaluation.hpp"

#include <cmath>

#include "comm/collectives.hpp"
#include "core/error.hpp"

namespace deltapipe {

EvaluationResult evaluate(Pipeline& pipeline, const TokenDataset& data, const StepPlanner& planner,
                          const ProcessGrid& grid, ProgressThread& progress) {
  double sum = 0;
  for (std::uint64_t step = 0; step < planner.steps_per_epoch(); ++step) {
    progress.check();
    const StepPlan plan = planner.plan(step, grid.replica());
    pipeline.evaluate_step(data, plan);
    sum += pipeline.loss_sum();
  }
  EvaluationResult result;
  result.tokens = data.tokens();
  result.loss = all_reduce(progress, grid.world(), sum, Reduction::sum) /
                static_cast<double>(std::max<std::uint64_t>(1, result.tokens));
  if (!std::isfinite(result.loss))
    throw UserError({.what = "the loss of the evaluation is not finite",
                     .value = std::to_string(result.loss),
                     .remedy = "the model has diverged: evaluate weights from before that, or "
                               "train with a lower learning rate"});
  result.perplexity = std::exp(result.loss);
  return result;
}

}  // namespace deltapipe
