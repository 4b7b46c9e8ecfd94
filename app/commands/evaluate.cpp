// SPDX-License-Identifier: BSD-3-Clause
#include <cstdio>

#include "app/commands/commands.hpp"
#include "app/output/progress_display.hpp"
#include "app/output/training_report.hpp"
#include "app/preflight/start_check.hpp"
#include "app/preflight/warnings.hpp"
#include "app/session/data_of_stage.hpp"
#include "app/session/input_files.hpp"
#include "app/session/session.hpp"
#include "app/training/evaluation.hpp"
#include "app/training/stages.hpp"
#include "comm/pipeline/pipeline.hpp"
#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/base/observe/trace.hpp"

namespace deltapipe {

namespace {

/// The data of an evaluation, for which the deck's model is read.
DataSplit read_data(const Settings& settings, const ModelPlan& plan, const ProcessGrid& grid,
                    ProgressThread& progress) {
  const EmulatingRanks emulating = emulating_ranks(settings, grid, progress);
  if (grid.rank() == 0) {
    print_warnings(plan.warnings);
    print_warnings(warnings_of_untrained(settings));
    print_warnings(warnings_of_precision(settings, emulating));
    print_warnings(warnings_of_evaluation(settings));
  }
  DataSplit data = load_data(settings.data, plan, grid, progress);
  if (grid.rank() == 0) print_warnings(texts_of(data.skipped));
  compare_inputs(progress, plan, &data);
  if (data.validation->size() == 0)
    throw UserError({.what = "the deck leaves no validation samples to evaluate",
                     .value = "data.validation_fraction = 0, no files in data.validation",
                     .remedy = "set data.validation_fraction above 0 or name files in "
                               "data.validation; to evaluate the training text, name its files",
                     .keys = {"data.validation_fraction", "data.validation"}});
  return data;
}

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
      std::printf("; %sB on the wire",
                  with_prefix(static_cast<double>(wire_bytes(figures))).c_str());
    std::printf("\n");
  }
  std::fflush(stdout);
}

}  // namespace

void run_evaluate(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress) {
  check_precision(settings);
  require(find_input_files(settings, input_use(grid)));
  ModelPlan plan = plan_model(settings);
  const DataSplit data = read_data(settings, plan, grid, progress);
  const Stages stages = make_stages(settings, plan, grid, false, settings.training.precision);
  const PipelineOptions options = pipeline_options(settings);
  Pipeline pipeline(options,
                    pipeline_shape(options, *plan.model, plan.partition, *data.train, false), grid,
                    progress, pointers_to(stages));
  const TimePoint begin = Clock::now();
  const EvaluationRecord record =
      *evaluate({pipeline, data, plan.model->task(), step_layout(options), options.evaluation, grid,
                 progress});
  if (grid.rank() == 0)
    print_results(settings, plan.model->task(), data, record, seconds_between(begin, Clock::now()));
}

}  // namespace deltapipe
