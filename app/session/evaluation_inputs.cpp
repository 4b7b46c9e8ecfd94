// SPDX-License-Identifier: BSD-3-Clause
#include "app/session/evaluation_inputs.hpp"

#include <fmt/format.h>

#include <utility>

#include "app/output/progress_display.hpp"
#include "app/preflight/start_check.hpp"
#include "app/preflight/warnings.hpp"
#include "app/session/data_of_stage.hpp"
#include "app/session/input_files.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

namespace {

/// Refuses to evaluate layers that only a training would make.
void require_trained(const ModelPlan& plan, const std::string& path) {
  if (path.empty() || plan.model->fresh().empty()) return;
  throw UserError({.what = "the weights of the model lack parameters of its classifier",
                   .value = fmt::format("{} in {}", *plan.model->fresh().begin(), path),
                   .remedy = "train it, and name the saved model in model.path",
                   .keys = {"model.path"}});
}

/// Returns the data; the model of `plan` has been read.
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

}  // namespace

EvaluationInputs open_evaluation(const Settings& settings, const ProcessGrid& grid,
                                 ProgressThread& progress) {
  check_precision(settings);
  require(find_input_files(settings, input_use(grid)));
  ModelPlan plan = plan_model(settings);
  require_trained(plan, settings.model.path);
  DataSplit data = read_data(settings, plan, grid, progress);
  Stages stages = make_stages(settings, plan, grid, false, settings.training.precision);
  return {std::move(plan), std::move(data), std::move(stages)};
}

std::unique_ptr<Pipeline> make_evaluation_pipeline(const PipelineOptions& options,
                                                   const EvaluationInputs& inputs,
                                                   const ProcessGrid& grid,
                                                   ProgressThread& progress) {
  return std::make_unique<Pipeline>(
      options,
      pipeline_shape(options, *inputs.plan.model, inputs.plan.partition, *inputs.data.validation,
                     false),
      grid, progress, pointers_to(inputs.stages));
}

}  // namespace deltapipe
