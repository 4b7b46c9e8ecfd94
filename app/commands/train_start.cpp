// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/train_start.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include "app/checkpoint/checkpoint_removal.hpp"
#include "app/checkpoint/restart_deck.hpp"
#include "app/checkpoint/restart_state.hpp"
#include "app/deck/checks.hpp"
#include "app/deck/deck.hpp"
#include "app/output/former_run_file.hpp"
#include "app/output/run_records.hpp"
#include "app/output/save_model.hpp"
#include "app/output/training_report.hpp"
#include "app/preflight/idle_settings.hpp"
#include "app/preflight/resource_check.hpp"
#include "app/preflight/start_check.hpp"
#include "app/preflight/warnings.hpp"
#include "app/session/data_of_stage.hpp"
#include "app/session/input_files.hpp"
#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/base/version.hpp"
#include "core/files/directory_lock.hpp"

namespace deltapipe {

namespace {

/// Files that cache.keep left are results.
bool needs_spill_files(const std::string& directory, const std::string& run_id) {
  return std::ranges::any_of(runs_that_need_spill_files(directory),
                             [&](const CacheOwner& run) { return run.run_id == run_id; });
}

void print_start_warnings(const Settings& settings, const ModelPlan& model,
                          const EmulatingRanks& emulating) {
  print_warnings(model.warnings);
  print_warnings(warnings_of(settings, model.model->dropout()));
  print_warnings(warnings_of_precision(settings, emulating));
  print_warnings(warnings_of_evaluation(settings));
  print_warnings(warnings_without_effect(settings));
  print_warnings(warnings_of_network(settings.network));
  print_warnings(warnings_of_bubble(settings));
  print_warnings(warnings_of_model(settings, model.model->shape()));
}

std::uint64_t steps_of_run(const Settings& settings, const DataSplit& data,
                           const std::optional<Restart>& restart) {
  const StepPlanner planner = step_planner(settings, *data.train);
  const std::uint64_t steps =
      total_steps(settings.training.steps, settings.training.epochs, planner.steps_per_epoch());
  if (restart && restart->marker.step > steps)
    throw UserError({.what = fmt::format("the checkpoint of step {} is beyond the end of the run",
                                         restart->marker.step),
                     .value = fmt::format("{} steps", steps),
                     .remedy = "train for more steps, or start from scratch with output.overwrite "
                               "= true or another output.directory",
                     .keys = {"training.steps", "training.epochs"}});
  if (data.validation->size() > 0)
    deck::check_local_epochs(settings, planner.steps_per_epoch(), steps);
  return steps;
}

/// Content that all checkpoints of this start share.
CheckpointMarker marker_of(const Settings& settings, const TrainingInputs& inputs,
                           const RunPlan& plan) {
  CheckpointMarker marker;
  marker.run_id = plan.run_id;
  marker.output_directory = absolute_output_directory(settings);
  marker.with_memories = settings.checkpoint.mode == CheckpointMode::exact;
  marker.stages = settings.pipeline.stages;
  marker.replicas = settings.pipeline.replicas;
  marker.stages_per_rank = settings.pipeline.stages_per_rank;
  marker.partition = inputs.model.partition;
  marker.deltapipe_version = std::string(version());
  marker.source_revision = std::string(revision());
  marker.deck = effective_deck(settings);
  marker.train_fingerprint = inputs.data.train->fingerprint();
  marker.validation_fingerprint = inputs.data.validation->fingerprint();
  return marker;
}

/// Returns the line that says which memories a restart resets; empty: none. `reset_ends`: ends that
/// begin without the memories of the checkpoint.
std::string reset_memories_text(TrainingRun& run, bool resyncs, std::uint64_t reset_ends) {
  const ResyncCounts counts = resyncs ? run.resync_memories() : ResyncCounts{};
  std::string text;
  if (counts.kept + counts.forgotten > 0)
    text =
        fmt::format("{} samples kept, {} reset (both ends counted)", counts.kept, counts.forgotten);
  if (const std::uint64_t ends = resyncs ? counts.empty_ends : reset_ends; ends > 0)
    text += fmt::format("{}reset at {} end(s) of boundaries", text.empty() ? "" : "; ", ends);
  return text.empty() ? text : "memories: " + text;
}

}  // namespace

void clear_finished_run(const Settings& settings, const FormerRun& former,
                        ClaimedDirectories& claimed, const ProcessGrid& grid,
                        ProgressThread& progress) {
  claimed.take_over();
  const std::string& run_id = former.run_id;
  const std::string directory = cache_directory(settings);
  if (settings.cache.keep)
    let_replace_spill_files(directory, {run_id});
  else if (needs_spill_files(directory, run_id))
    remove_other_spill_files(directory, {run_id}, {});
  barrier(progress, grid.world());
  if (claimed.keeps_checkpoints()) remove_checkpoints_of(checkpoint_directory(settings), run_id);
  barrier(progress, grid.world());
  if (grid.rank() == 0) report_finished(settings, former);
}

std::optional<Restart> find_start(const Settings& settings, const FormerRun& former,
                                  ClaimedDirectories& claimed, const ProcessGrid& grid,
                                  ProgressThread& progress) {
  std::optional<Restart> restart;
  if (!former.run_id.empty()) restart = find_restart(settings, former, grid, progress);
  if (restart) check_deck_of_restart(settings, restart->marker);
  if (!restart && !former.run_id.empty() && grid.rank() == 0)
    check_start_from_scratch(settings, former);
  if (restart && restart->refers_to_files) claimed.claim_caches(settings, grid, progress);
  if (!restart && !settings.checkpoint.directory.empty() && writes_checkpoints(settings))
    check_for_other_runs(settings.checkpoint.directory);
  return restart;
}

TrainingInputs open_inputs(const Settings& settings, const std::optional<Restart>& restart,
                           const ProcessGrid& grid, ProgressThread& progress) {
  const std::vector<std::string> models = saved_models(settings);
  if (grid.rank() == 0) {
    for (const std::string& directory : models) check_model_directory(directory, settings);
    std::printf("reading model and data\n");
    std::fflush(stdout);
  }
  require(find_input_files(settings, input_use(grid)));
  ModelPlan model = plan_model(settings);
  if (grid.rank() == 0 && !models.empty())
    model.kept_files = read_kept_files(settings, model.model->shape().image, model.warnings);
  const EmulatingRanks emulating = emulating_ranks(settings, grid, progress);
  if (grid.rank() == 0) print_start_warnings(settings, model, emulating);
  DataSplit data = load_data(settings.data, model, grid, progress);
  if (grid.rank() == 0) {
    for (const std::string& note : data.notes) std::printf("%s\n", note.c_str());
    print_warnings(texts_of(data.skipped));
  }
  compare_inputs(progress, model, &data);
  if (restart)
    check_data_of_restart(restart->marker, data.train->fingerprint(),
                          data.validation->fingerprint());
  return {std::move(model), std::move(data)};
}

RunPlan plan_run(const Settings& settings, const TrainingInputs& inputs,
                 const std::optional<Restart>& restart, const ProcessGrid& grid,
                 ProgressThread& progress) {
  const ModelPlan& model = inputs.model;
  RunPlan plan;
  TrainingPlan& training = plan.training;
  training.pipeline = pipeline_options(settings);
  training.shape =
      pipeline_shape(training.pipeline, *model.model, model.partition, *inputs.data.train);
  training.optimizer = settings.training.optimizer;
  training.shuffle = settings.data.shuffle;
  training.measure_every = settings.output.log_every;
  if (restart)
    plan.former_files = former_spill_files(*restart, settings, model.partition, grid.rank());
  plan.predicted =
      check_resources(settings, model, training.shape, plan.former_files, grid, progress);
  plan.owner = check_spill_files(settings, model, training.shape, plan.former_files, restart, grid,
                                 progress);
  training.shape.steps = steps_of_run(settings, inputs.data, restart);
  plan.run_id = restart ? restart->marker.run_id : new_run_id();
  broadcast(progress, grid.world(), plan.run_id, 0);
  plan.owner.run_id = plan.run_id;
  plan.is_same_layout = restart && is_same_layout(restart->marker, settings, model.partition);
  CacheGenerations& generations = training.pipeline.generations;
  generations.owner = plan.owner;
  generations.referred = plan.former_files.reopened;
  // After a checkpoint without memories the files may still hold records that both ends share.
  generations.resyncs = plan.is_same_layout && !restart->with_memories &&
                        settings.checkpoint.mode == CheckpointMode::resync;
  return plan;
}

RunOutput open_output(const Settings& settings, const TrainingInputs& inputs, const RunPlan& plan,
                      const std::optional<Restart>& restart, const ProcessGrid& grid,
                      ProgressThread& progress) {
  std::vector<std::string> hosts = gather(progress, grid.world(), host_name(), 0);
  if (grid.rank() > 0) return {nullptr, progress};
  print_warnings(warnings_of_steps(settings, plan.training.shape.steps));
  const std::string path = settings.output.directory + "/run.h5";
  const auto warn = [](const std::string& message) {
    std::fprintf(stderr, "\ndeltapipe: warning: %s\n", message.c_str());
  };
  RunAttributes attributes = run_attributes(settings, inputs.model);
  attributes.run_id = plan.run_id;
  attributes.hosts = std::move(hosts);
  print_program(attributes);
  if (!restart) return {std::make_unique<RunFile>(path, attributes, warn), progress};
  const RunFileContinuation continuation{record_of(restart->marker),
                                         restart->checkpoint + "/" + kRunFileCopy, path,
                                         changes_of_optimizer(settings, restart->marker)};
  return {std::make_unique<RunFile>(path, attributes, continuation, warn), progress};
}

EvaluationMode counted_mode(const EvaluationSettings& settings) {
  return settings.has(EvaluationMode::plain) ? EvaluationMode::plain : EvaluationMode::codec;
}

namespace {

EvaluationCourse former_course(const Settings& settings, const RunOutput& output,
                               const std::optional<Restart>& restart, const ProcessGrid& grid,
                               ProgressThread& progress) {
  EvaluationCourse course;
  if (!restart || !settings.training.needs_validation()) return course;
  // The checkpoint's run file has the evaluations up to its step. The best model on the disk may be
  // of a later one.
  std::vector<double> values;  // pairs of step and loss, that of the best model first
  if (RunFile* const file = output.file()) {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    const EvaluationLoss kept = file->best().value_or(EvaluationLoss{0, nan});
    values = {static_cast<double>(kept.step), kept.loss};
    for (const auto& [step, loss] : losses_of_evaluations(
             restart->checkpoint + "/" + kRunFileCopy,
             counted_mode(settings.evaluation) == EvaluationMode::codec, restart->marker.step))
      values.insert(values.end(), {static_cast<double>(step), loss});
  }
  broadcast(progress, grid.world(), values, 0);
  for (std::size_t i = 0; i < values.size(); i += 2)
    (i == 0 ? course.kept : course.all).add(static_cast<std::uint64_t>(values[i]), values[i + 1]);
  return course;
}

/// Builds the run and restores its state.
std::unique_ptr<TrainingRun> build_run(const Settings& settings, const TrainingInputs& inputs,
                                       const RunPlan& plan, Stages stages,
                                       const std::optional<Restart>& restart,
                                       const ProcessGrid& grid, ProgressThread& progress) {
  const std::vector<int>& partition = inputs.model.partition;
  if (restart) {
    make_room_for_spill_files(*restart, settings, partition, grid.rank(), plan.owner);
    barrier(progress, grid.world());
  }
  auto run = std::make_unique<TrainingRun>(plan.training, *inputs.model.model, std::move(stages),
                                           *inputs.data.train, grid, progress);
  if (restart) {
    const int ends =
        read_restart(*restart, settings, partition, grid.rank(), run->state(), run->totals());
    const std::string text = reset_memories_text(
        *run, plan.training.pipeline.generations.resyncs,
        all_reduce(progress, grid.world(), static_cast<std::uint64_t>(ends), Reduction::sum));
    if (grid.rank() == 0 && !text.empty()) std::printf("%s\n", text.c_str());
  }
  run->compare_replicas();
  return run;
}

/// Null: the run writes no checkpoints.
std::unique_ptr<Checkpoints> start_checkpoints(const Settings& settings,
                                               const TrainingInputs& inputs, const RunPlan& plan,
                                               const std::optional<Restart>& restart,
                                               const ClaimedDirectories& claimed, TrainingRun& run,
                                               TimePoint start, const ProcessGrid& grid,
                                               ProgressThread& progress) {
  if (!writes_checkpoints(settings)) return nullptr;
  std::vector<ActivationCache*> caches;
  if (settings.checkpoint.mode == CheckpointMode::exact) caches = run.pipeline().caches();
  auto checkpoints = std::make_unique<Checkpoints>(
      settings.checkpoint, checkpoint_directory(settings), grid, progress,
      marker_of(settings, inputs, plan), claimed.keeps_checkpoints(), std::move(caches), start);
  if (restart) checkpoints->go_on_from(restart->marker);
  std::uint64_t bytes = 0;
  for (const MemoryUse use : {MemoryUse::weights, MemoryUse::optimizer, MemoryUse::cache})
    bytes += plan.predicted.ledger.bytes(use);
  const bool evaluates = inputs.data.validation->size() > 0;
  checkpoints->expect(all_reduce(progress, grid.world(), bytes, Reduction::max),
                      evaluates ? evaluation_steps(run.evaluation_context(inputs.data)) : 0);
  return checkpoints;
}

/// The lines that say what is trained.
std::string description(const Settings& settings, const TrainingInputs& inputs,
                        const TrainingRun& run, const std::optional<Restart>& restart) {
  const ModelPlan& model = inputs.model;
  const DataSplit& data = inputs.data;
  const int vocabulary = model.model->shape().vocabulary;
  std::string text = fmt::format("{}{}; blocks per stage", model.model->description(),
                                 vocabulary > 0 ? fmt::format(", vocabulary {}", vocabulary) : "");
  for (const int blocks : model.partition) text += fmt::format(" {}", blocks);
  if (settings.pipeline.stages_per_rank > 1)
    text += fmt::format(", {} stages a rank", settings.pipeline.stages_per_rank);
  text += fmt::format(
      "; {} replica(s)\n{} training and {} validation samples{}{}; {} steps, {} per epoch",
      settings.pipeline.replicas, data.train->size(), data.validation->size(),
      model.tokens > 1 ? fmt::format(" of {} {}", model.tokens, vocabulary > 0 ? "tokens" : "rows")
                       : "",
      answers_text(data), run.steps(), run.planner().steps_per_epoch());
  if (!restart) return text;
  text += fmt::format("\nresuming from the checkpoint of step {}", restart->marker.step);
  const std::string changes = changes_of_optimizer(settings, restart->marker);
  return changes.empty() ? text : text + " with " + changes;
}

/// Removes checkpoints whose records this run will overwrite. The one that it starts from stays,
/// also if it writes none: files that checkpoints refer to have room for each record twice.
void remove_other_checkpoints(const Settings& settings, const Restart& restart,
                              const ClaimedDirectories& claimed, const RunSpillFiles& spill_files,
                              const ProcessGrid& grid, ProgressThread& progress) {
  if (!spill_files.exist()) return;
  if (claimed.keeps_checkpoints())
    remove_checkpoints_but(checkpoint_directory(settings), settings.checkpoint,
                           restart.marker.step);
  barrier(progress, grid.world());
}

}  // namespace

StartedRun start_run(const Settings& settings, ClaimedDirectories& claimed,
                     const std::optional<Restart>& restart, const TrainingInputs& inputs,
                     const RunPlan& plan, Stages stages, RunOutput& output, TimePoint begin,
                     const ProcessGrid& grid, ProgressThread& progress) {
  claimed.take_over();
  const EvaluationCourse course = former_course(settings, output, restart, grid, progress);
  auto training = build_run(settings, inputs, plan, std::move(stages), restart, grid, progress);
  ProgressDisplay display(training->steps(), settings.output.log_every, grid.rank() == 0,
                          training->totals().steps, inputs.model.model->task().target_name());
  display.line(description(settings, inputs, *training, restart));
  if (restart && !plan.is_same_layout && has_errors(settings.replicas.codec) &&
      settings.pipeline.replicas > 1)
    display.line("on another layout, errors of sums over replicas start from zero");
  const RunSpillFiles spill_files(settings, plan.owner, training->pipeline().caches(), grid,
                                  progress);
  // On another layout spill files are new ones.
  if (plan.is_same_layout)
    remove_other_checkpoints(settings, *restart, claimed, spill_files, grid, progress);
  auto checkpoints =
      start_checkpoints(settings, inputs, plan, restart, claimed, *training, begin, grid, progress);
  return {settings,
          grid,
          progress,
          claimed,
          restart,
          inputs,
          plan,
          output,
          course,
          std::move(training),
          spill_files,
          std::move(display),
          std::move(checkpoints)};
}

}  // namespace deltapipe
