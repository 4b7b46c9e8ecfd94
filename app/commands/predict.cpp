// SPDX-License-Identifier: BSD-3-Clause
#include <cstdio>
#include <optional>

#include "app/commands/commands.hpp"
#include "app/deck/deck.hpp"
#include "app/output/predictions_file.hpp"
#include "app/session/evaluation_inputs.hpp"
#include "app/training/prediction.hpp"
#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/base/printable.hpp"

namespace deltapipe {

namespace {

void require_classes(const Settings& settings, const Model& model) {
  if (!model.class_names().empty()) return;
  throw UserError({.what = "predict requires a model that classifies",
                   .value = model.description(),
                   .remedy = "name a classifier in model.path, or use evaluate or generate",
                   .keys = {settings.model.path.empty() ? "model.new.type" : "model.path"}});
}

/// Returns the labels of samples first, first + 1 ...; -1: unknown.
std::vector<std::int32_t> labels_of(const Dataset& data, std::uint64_t first, std::size_t count) {
  std::vector<std::int32_t> labels(count, -1);
  for (std::size_t i = 0; i < count; ++i) {
    SampleSpans fields;
    fields.set(Field::label, std::span(&labels[i], 1));
    data.read(first + i, {}, fields);
  }
  return labels;
}

/// Returns the files of samples first, first + 1 ...; empty if samples are not files.
std::vector<std::string> files_of(const Dataset& data, std::uint64_t first, std::size_t count) {
  std::vector<std::string> files;
  for (std::size_t i = 0; i < count && !data.file(first).empty(); ++i)
    files.push_back(data.file(first + i));
  return files;
}

/// Returns the settings with the files of data.predict, if there are any, as the only data.
Settings with_files_to_predict(const Settings& settings) {
  if (settings.data.predict.empty()) return settings;
  Settings result = settings;
  result.data.train.clear();
  result.data.validation = settings.data.predict;
  result.data.max_validation_samples = 0;
  result.data.labels_optional = true;
  return result;
}

/// Prints the samples by label and prediction, for as many classes as a terminal shows.
void print_confusion(const PredictionsFile& file, const std::vector<std::string>& classes) {
  constexpr std::size_t kMostShown = 12, kWidth = 12;
  const std::vector<std::uint64_t>& counts = file.confusion();
  if (file.labelled() == 0 || counts.empty() || classes.size() > kMostShown) return;
  const auto cell = [](const std::string& text) {
    constexpr std::size_t kMost = kWidth - 2, kDots = 3;
    return printable(text, text.size() > kMost ? kMost - kDots : kMost);
  };
  std::printf("label (rows) and prediction\n%*s", static_cast<int>(kWidth), "");
  for (const std::string& name : classes)
    std::printf("%*s", static_cast<int>(kWidth), cell(name).c_str());
  for (std::size_t label = 0; label < classes.size(); ++label) {
    std::printf("\n%-*s", static_cast<int>(kWidth), cell(classes[label]).c_str());
    for (std::size_t c = 0; c < classes.size(); ++c)
      std::printf("%*llu", static_cast<int>(kWidth),
                  static_cast<unsigned long long>(counts[label * classes.size() + c]));
  }
  std::printf("\n");
}

void print_result(const PredictionsFile& file, std::uint64_t samples, double seconds) {
  std::printf("%llu samples in %.3g s", static_cast<unsigned long long>(samples), seconds);
  if (file.labelled() > 0)
    std::printf(", accuracy %.4f",
                static_cast<double>(file.right()) / static_cast<double>(file.labelled()));
  std::printf("; predictions in %s and %s\n", file.hdf5_path().c_str(), file.csv_path().c_str());
  std::fflush(stdout);
}

}  // namespace

void run_predict(const Settings& deck, const ProcessGrid& grid, ProgressThread& progress) {
  const Settings settings = with_files_to_predict(deck);
  const EvaluationInputs inputs = open_evaluation(settings, grid, progress);
  require_classes(settings, *inputs.plan.model);
  const Dataset& data = *inputs.data.validation;
  std::optional<PredictionsFile> file;
  if (grid.rank() == 0) {
    make_directory(settings.output.directory);
    file.emplace(settings.output.directory, inputs.plan.model->class_names(),
                 inputs.plan.model->description(), effective_deck(deck), !data.file(0).empty());
  }
  const PipelineOptions options = pipeline_options(settings);
  const auto pipeline = make_evaluation_pipeline(options, inputs, grid, progress);
  const std::size_t classes = inputs.plan.model->class_names().size();
  const TimePoint begin = Clock::now();
  predict({*pipeline, inputs.data, inputs.plan.model->task(), step_layout(options),
           options.evaluation, grid, progress},
          data, options.evaluation.modes.front(), static_cast<int>(classes),
          [&](const Predictions& predictions) {
            const std::size_t count = predictions.probabilities.size() / classes;
            file->append(labels_of(data, predictions.first, count), predictions.probabilities,
                         files_of(data, predictions.first, count));
          });
  if (grid.rank() > 0) return;
  file->commit();
  print_confusion(*file, inputs.plan.model->class_names());
  print_result(*file, data.size(), seconds_between(begin, Clock::now()));
}

}  // namespace deltapipe
