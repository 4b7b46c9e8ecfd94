// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/training_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "app/output/progress_display.hpp"
#include "app/session/frozen_parameters.hpp"
#include "comm/transport/process_grid.hpp"
#include "core/base/number_text.hpp"

namespace deltapipe {

namespace {

const char* name_of_loss(EvaluationMode mode) {
  return mode == EvaluationMode::plain ? "validation loss" : "loss through the codec";
}

/// The last evaluation, and the bytes of all of them.
void print_evaluation(const Settings& settings, const TrainingReport& report) {
  if (!report.last_evaluation) return;
  for (const EvaluationMode mode : settings.evaluation.modes) {
    const EvaluationFigures& figures = *report.last_evaluation->of(mode);
    std::printf("%-28s %s (%s)%s", name_of_loss(mode), number_text("%.4f", figures.loss).c_str(),
                metrics_text(figures).c_str(), exact_match_text(figures).c_str());
    const std::uint64_t bytes = report.totals.evaluation_bytes[static_cast<std::size_t>(mode)];
    if (bytes > 0) std::printf(", all evaluations %s on the wire", bytes_text(bytes).c_str());
    std::printf("\n");
  }
}

/// Prints the shares of each rank's time, and the share of the transfers that compute hid.
void print_times(const PipelineSettings& pipeline, const RunTotals& totals) {
  constexpr std::pair<RankValue, const char*> parts[] = {
      {RankValue::compute, "compute"}, {RankValue::codec, "codec"},
      {RankValue::cache, "cache"},     {RankValue::wire_exposed, "wire"},
      {RankValue::bubble, "bubble"},   {RankValue::replicas, "replicas"},
      {RankValue::other, "other"},
  };
  for (int rank = 0; rank < pipeline.pipeline_ranks(); ++rank) {
    const auto seconds = [&](RankValue value) {
      return totals.ranks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(value)];
    };
    const std::string name =
        "time of " + stages_text(rank, pipeline.stages, pipeline.stages_per_rank);
    std::printf("%-28s", name.c_str());
    for (const auto& [value, text] : parts)
      if (seconds(value) > 0)
        std::printf(" %s %.0f %%", text, 100 * seconds(value) / seconds(RankValue::wall));
    if (seconds(RankValue::wire) > 0)
      std::printf("; %.0f %% of %.1f s on the wire hidden",
                  100 * std::max(0.0, seconds(RankValue::wire_hidden)) / seconds(RankValue::wire),
                  seconds(RankValue::wire));
    std::printf("\n");
  }
}

void print_checkpoints(const Checkpoints::Totals& totals) {
  if (totals.count == 0) return;
  std::printf(
      "%-28s %llu of %sB each, for which training waited %.2f s\n", "checkpoints",
      static_cast<unsigned long long>(totals.count),
      with_prefix(static_cast<double>(totals.bytes) / static_cast<double>(totals.count)).c_str(),
      totals.blocked_seconds);
}

/// The files that the run leaves.
void print_files(const Settings& settings, const BestEvaluation& kept) {
  std::printf("%-28s %s/run.h5\n", "run file", settings.output.directory.c_str());
  if (settings.output.save_model)
    std::printf("%-28s %s\n", "model", model_directory(settings).c_str());
  if (kept.is_known())
    std::printf("%-28s %s, of step %llu with the validation loss %s\n", "best model",
                best_directory(settings).c_str(), static_cast<unsigned long long>(kept.step()),
                number_text("%.4f", kept.loss()).c_str());
}

}  // namespace

std::string answers_text(const DataSplit& data) {
  const std::uint64_t count = data.answers.size();
  return count > 0 ? fmt::format(", {} prompts with answers", count) : "";
}

std::string exact_match_text(const EvaluationFigures& figures) {
  if (std::isnan(figures.exact_match)) return "";
  return fmt::format(", exact match {:.2f} %", 100 * figures.exact_match);
}

std::string metrics_text(const EvaluationFigures& figures, int fewer) {
  std::string text;
  for (const MetricValue& of : figures.metrics) {
    const std::string format = fmt::format("%.{}f", std::max(0, of.metric->digits - fewer));
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", of.metric->name,
                        number_text(format.c_str(), of.value));
  }
  return text;
}

std::string evaluation_text(const EvaluationRecord& record, EvaluationMode mode) {
  const EvaluationFigures& figures = *record.of(mode);
  return fmt::format("epoch {:.2f}: {} {}, {}{}", record.epoch, name_of_loss(mode),
                     number_text("%.4f", figures.loss), metrics_text(figures),
                     exact_match_text(figures));
}

std::string early_end_text(std::uint64_t steps_done, std::uint64_t steps, std::uint64_t patience,
                           const BestEvaluation& course) {
  std::string text = fmt::format(
      "stopped early after step {} of {}: training.patience = {}, no lower validation loss in {} "
      "evaluation(s)",
      steps_done, steps, patience, course.since());
  if (course.is_known()) text += fmt::format(" since step {}", course.step());
  return text;
}

void print_report(const Settings& settings, const TrainingReport& report) {
  const RunTotals& totals = report.totals;
  std::printf("\n%-28s %llu, %.2f s each\n", "steps", static_cast<unsigned long long>(totals.steps),
              totals.seconds / static_cast<double>(totals.steps));
  if (!report.early_end.empty()) std::printf("%-28s %s\n", "end", report.early_end.c_str());
  std::printf("%-28s %s\n", "parameters", parameters_text(report.parameters).c_str());
  std::printf("%-28s %s\n", "training loss, last step",
              number_text("%.4f", totals.last_loss).c_str());
  print_evaluation(settings, report);
  std::printf("%-28s %s %s/s, %.2f sequences/s\n", "speed",
              with_prefix(static_cast<double>(totals.tokens) / totals.seconds).c_str(),
              report.targets, static_cast<double>(totals.samples) / totals.seconds);
  if (report.memory.size() > 1) {
    std::printf("%-28s %s, %sB/s\n", "on the wire", bytes_text(totals.bytes).c_str(),
                with_prefix(static_cast<double>(totals.bytes) / totals.seconds).c_str());
  }
  print_times(settings.pipeline, totals);
  std::printf("%-28s", "peak memory, rank by rank");
  for (const RankMemoryRecord& rank : report.memory)
    std::printf(" %s", bytes_text(rank.peak).c_str());
  std::printf("\n");
  print_checkpoints(report.checkpoints);
  print_files(settings, report.kept);
  std::fflush(stdout);
}

}  // namespace deltapipe
