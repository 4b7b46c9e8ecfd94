// SPDX-License-Identifier: BSD-3-Clause
#include <cstdio>

#include "app/commands/commands.hpp"
#include "app/output/progress_display.hpp"
#include "app/output/training_report.hpp"
#include "app/session/evaluation_inputs.hpp"
#include "app/training/evaluation.hpp"
#include "core/base/number_text.hpp"
#include "core/base/observe/trace.hpp"

namespace deltapipe {

namespace {

void print_results(const Settings& settings, const Task& task, const DataSplit& data,
                   const EvaluationRecord& record, double seconds) {
  std::printf("%llu samples, %llu %s", static_cast<unsigned long long>(data.validation->size()),
              static_cast<unsigned long long>(record.tokens), task.target_name());
  const std::vector<EvaluationMode>& modes = settings.evaluation.modes;
  const double targets = static_cast<double>(record.tokens) * static_cast<double>(modes.size());
  // With answers the time is not only that of these targets.
  if (data.answers.size() > 0)
    std::printf("%s; %.3g s\n", answers_text(data).c_str(), seconds);
  else
    std::printf(", %s %s/s\n", with_prefix(targets / seconds).c_str(), task.target_name());
  for (const EvaluationMode mode : modes) {
    const EvaluationFigures& figures = *record.of(mode);
    std::printf("%sloss %s, %s%s", mode == EvaluationMode::plain ? "" : "through the codec: ",
                number_text("%.6f", figures.loss).c_str(), metrics_text(figures, 0).c_str(),
                exact_match_text(figures).c_str());
    if (settings.pipeline.stages > 1)
      std::printf("; %s on the wire", bytes_text(wire_bytes(figures)).c_str());
    std::printf("\n");
  }
  std::fflush(stdout);
}

}  // namespace

void run_evaluate(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress) {
  const EvaluationInputs inputs = open_evaluation(settings, grid, progress);
  const Task& task = inputs.plan.model->task();
  const PipelineOptions options = pipeline_options(settings);
  const auto pipeline = make_evaluation_pipeline(options, inputs, grid, progress);
  const TimePoint begin = Clock::now();
  const EvaluationRecord record = *evaluate(
      {*pipeline, inputs.data, task, step_layout(options), options.evaluation, grid, progress});
  if (grid.rank() == 0)
    print_results(settings, task, inputs.data, record, seconds_between(begin, Clock::now()));
}

}  // namespace deltapipe
