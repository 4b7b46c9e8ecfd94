#include "app/evaluation.hpp"

#include <cmath>

#include "comm/collectives.hpp"

namespace deltapipe {

EvaluationResult evaluate(Pipeline& pipeline, const TokenDataset& data, const StepPlanner& planner,
                          const ProcessGrid& grid, ProgressThread& progress) {
  double sum = 0;
  for (std::uint64_t step = 0; step < planner.steps_per_epoch(); ++step) {
    const StepPlan plan = planner.plan(step, grid.replica());
    pipeline.evaluate_step(data, plan);
    sum += pipeline.loss_sum();
  }
  EvaluationResult result;
  result.tokens = data.tokens();
  result.loss = all_reduce(progress, grid.world(), sum, Reduction::sum) /
                static_cast<double>(std::max<std::uint64_t>(1, result.tokens));
  result.perplexity = std::exp(result.loss);
  return result;
}

}  // namespace deltapipe
