// SPDX-License-Identifier: BSD-3-Clause
#include "app/training/evaluation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/base/number_text.hpp"

namespace deltapipe {

namespace {

/// Passes over a set once and calls `done` after each step. Returns false if the evaluation stops.
bool evaluate_steps(const EvaluationContext& context, const Dataset& data, EvaluationMode mode,
                    RowScore score, const StopsEvaluation& stops,
                    const std::function<void(const StepPlan&)>& done) {
  const int replica = context.grid.replica();
  const StepPlanner planner(data, 0, false, context.layout);
  const std::uint64_t steps = planner.steps_per_epoch();
  StepPlan plan = planner.plan(0, replica);
  for (std::uint64_t step = 0; step < steps; ++step) {
    context.progress.check();
    if (stops && stops()) return false;
    StepPlan next;
    if (step + 1 < steps) next = planner.plan(step + 1, replica);
    context.pipeline.evaluate_step(data, plan, mode, step + 1 < steps ? &next : nullptr, score);
    done(plan);
    plan = std::move(next);
  }
  return true;
}

[[noreturn]] void refuse_diverged(const std::string& what, double value) {
  throw UserError({.what = what + " of the evaluation is not finite",
                   .value = number_text("%g", value),
                   .remedy = "the model has diverged: evaluate weights from before that, or "
                             "train with a lower learning rate"});
}

/// Number of targets of each sample that greedy decoding misses; empty if the evaluation stops.
std::vector<double> count_misses(const EvaluationContext& context, const TokenDataset& data,
                                 EvaluationMode mode, const StopsEvaluation& stops) {
  std::vector<double> misses(data.size(), 0);
  const bool done =
      evaluate_steps(context, data, mode, RowScore::miss, stops, [&](const StepPlan& plan) {
        const std::vector<double> scores = context.pipeline.sample_scores();
        auto score = scores.begin();
        if (scores.empty()) return;  // not the last stage
        for (const std::vector<std::uint64_t>& ids : plan.micro_batches)
          for (const std::uint64_t id : ids) misses[id] = *score++;
      });
  if (!done) return {};
  all_reduce(context.progress, context.grid.world(), misses, Reduction::sum);
  for (const double n : misses)
    if (!std::isfinite(n)) refuse_diverged("a logit", n);
  return misses;
}

/// Share of the samples whose greedy answer is the expected one; empty if the evaluation stops.
/// Greedy decoding finds an answer if and only if each of its tokens is the likeliest one after
/// those before it, so that one pass over prompt and answer decides. A codec whose messages depend
/// on all their tokens must not see later tokens: each token of the answers then takes a pass, with
/// the samples that have missed none before.
std::optional<double> exact_match(const EvaluationContext& context, EvaluationMode mode,
                                  const StopsEvaluation& stops) {
  const TokenDataset& answers = context.data.answers;
  std::uint64_t exact = 0;
  if (context.pipeline.is_causal(mode)) {
    const std::vector<double> misses = count_misses(context, answers, mode, stops);
    if (misses.empty()) return std::nullopt;
    exact = static_cast<std::uint64_t>(std::count(misses.begin(), misses.end(), 0.0));
  } else {
    std::vector<std::uint64_t> undecided(answers.size());
    std::iota(undecided.begin(), undecided.end(), std::uint64_t{0});
    for (int target = 0; !undecided.empty(); ++target) {
      const std::vector<double> misses =
          count_misses(context, answers.at_target(target, undecided), mode, stops);
      if (misses.empty()) return std::nullopt;
      std::vector<std::uint64_t> next;
      for (std::size_t i = 0; i < undecided.size(); ++i) {
        if (misses[i] > 0) continue;
        if (answers.targets(undecided[i]) > target + 1)
          next.push_back(undecided[i]);
        else
          ++exact;
      }
      undecided = std::move(next);
    }
  }
  return static_cast<double>(exact) / static_cast<double>(answers.size());
}

std::optional<EvaluationFigures> evaluate(const EvaluationContext& context, EvaluationMode mode,
                                          const StopsEvaluation& stops) {
  Pipeline& pipeline = context.pipeline;
  const Dataset& validation = *context.data.validation;
  const Task& task = context.task;
  EvaluationFigures figures;
  const int stages = context.grid.stages();
  // The task's sums, bytes of each boundary, bytes of token rows.
  std::vector<double> values(task.sums() + static_cast<std::size_t>(stages), 0);
  const std::span<double> sums = std::span(values).first(task.sums());
  const auto add_step = [&](const StepPlan&) {
    std::vector<double> of_step(sums.size(), 0);
    pipeline.add_scores(task, of_step);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of_step[i];
  };
  if (!evaluate_steps(context, validation, mode, task.score(), stops, add_step))
    return std::nullopt;
  if (context.data.answers.size() > 0) {
    const std::optional<double> share = exact_match(context, mode, stops);
    if (!share) return std::nullopt;
    figures.exact_match = *share;
  }
  const Pipeline::SentBytes sent = pipeline.take_sent_bytes();
  std::copy(sent.forward.begin(), sent.forward.end(),
            values.begin() + static_cast<std::ptrdiff_t>(sums.size()));
  values.back() = sent.tied_rows;
  all_reduce(context.progress, context.grid.world(), values, Reduction::sum);
  const std::uint64_t count = std::max<std::uint64_t>(1, validation.all_targets());
  figures.loss = sums[0] / static_cast<double>(count);
  for (int b = 0; b + 1 < stages; ++b)
    figures.forward_bytes.push_back(
        static_cast<std::uint64_t>(values[sums.size() + static_cast<std::size_t>(b)]));
  figures.tied_row_bytes = static_cast<std::uint64_t>(values.back());
  figures.collective_bytes = context.progress.take_collective_bytes();
  if (!std::isfinite(figures.loss)) refuse_diverged("the loss", figures.loss);
  const std::vector<double> metrics = task.values(sums, count);
  for (std::size_t i = 0; i < metrics.size(); ++i)
    figures.metrics.push_back({&task.metrics()[i], metrics[i]});
  return figures;
}

}  // namespace

std::uint64_t wire_bytes(const EvaluationFigures& figures) {
  return std::accumulate(figures.forward_bytes.begin(), figures.forward_bytes.end(),
                         figures.tied_row_bytes);
}

std::uint64_t evaluation_steps(const EvaluationContext& context) {
  const auto steps_of = [&](const Dataset& data) {
    return data.size() == 0 ? 0 : StepPlanner(data, 0, false, context.layout).steps_per_epoch();
  };
  const TokenDataset& answers = context.data.answers;
  int longest = 0;
  for (std::uint64_t id = 0; id < answers.size(); ++id)
    longest = std::max(longest, answers.targets(id));
  std::uint64_t steps = 0;
  for (const EvaluationMode mode : context.settings.modes)
    steps += steps_of(*context.data.validation) +
             steps_of(answers) * (context.pipeline.is_causal(mode) ? 1 : longest);
  return steps;
}

std::optional<EvaluationRecord> evaluate(const EvaluationContext& context,
                                         const StopsEvaluation& stops) {
  EvaluationRecord record;
  record.tokens = context.data.validation->all_targets();
  for (const EvaluationMode mode : context.settings.modes) {
    record.of(mode) = evaluate(context, mode, stops);
    if (!record.of(mode)) return std::nullopt;
  }
  return record;
}

}  // namespace deltapipe
