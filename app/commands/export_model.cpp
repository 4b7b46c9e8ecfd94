// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "app/checkpoint/checkpoint_files.hpp"
#include "app/checkpoint/restart.hpp"
#include "app/checkpoint/restart_deck.hpp"
#include "app/checkpoint/restart_state.hpp"
#include "app/commands/commands.hpp"
#include "app/deck/deck.hpp"
#include "app/output/former_run_file.hpp"
#include "app/output/kept_files.hpp"
#include "app/output/save_model.hpp"
#include "app/preflight/warnings.hpp"
#include "app/session/data_of_stage.hpp"
#include "app/session/input_files.hpp"
#include "app/session/session.hpp"
#include "core/base/error.hpp"
#include "core/base/parallel/kokkos_compat.hpp"
#include "models/model.hpp"
#include "models/partition.hpp"

namespace deltapipe {

namespace fs = std::filesystem;

namespace {

/// UserError unless all files that have parameters are whole.
CheckpointMarker whole_checkpoint(const std::string& checkpoint) {
  CheckpointMarker marker = read_marker(checkpoint);
  for (int rank = 0; rank < marker.pipeline_ranks(); ++rank)
    check_file(checkpoint, marker.file(rank_file_name(rank)));
  return marker;
}

/// Returns the checkpoint of `step`, or the newest one that is whole.
CheckpointMarker find_checkpoint(const std::string& directory, std::uint64_t step) {
  const std::vector<std::uint64_t> steps = checkpoint_steps(directory);
  if (step > 0 && !std::ranges::binary_search(steps, step)) {
    std::string known;
    for (const std::uint64_t s : steps) known += fmt::format("{}{}", known.empty() ? "" : ", ", s);
    throw UserError({.what = "there is no checkpoint of that step",
                     .file = directory,
                     .value = fmt::format("--step {}", step),
                     .remedy = known.empty()
                                   ? "train with checkpoint.every_steps to have checkpoints"
                                   : "the steps with checkpoints are " + known});
  }
  if (step > 0) return whole_checkpoint(directory + "/" + checkpoint_name(step));
  for (auto newest = steps.rbegin(); newest != steps.rend(); ++newest) try {
      return whole_checkpoint(directory + "/" + checkpoint_name(*newest));
    } catch (const UserError& error) {
      std::fprintf(stderr, "deltapipe: warning: the checkpoint of step %llu is skipped: %s\n",
                   static_cast<unsigned long long>(*newest), error.what());
    }
  throw UserError({.what = "there is no complete checkpoint",
                   .file = directory,
                   .remedy =
                       "see output.directory and checkpoint.directory; a finished run has its "
                       "model in output.directory and keeps milestones only",
                   .keys = {"checkpoint.directory", "output.directory"}});
}

/// The deck makes the model that the checkpoint is of.
void expect_same_model(const Settings& settings, const CheckpointMarker& marker) {
  Settings former = parse_stored_deck(marker.deck, "the checkpoint's deck");
  Settings same = former;  // only what makes the model is compared
  same.model = settings.model;
  same.tokenizer = settings.tokenizer;
  former.model.path = same.model.path;  // may be elsewhere now
  former.tokenizer.path = same.tokenizer.path;
  if (const auto difference = first_difference(former, same))
    throw UserError({.what = fmt::format("the checkpoint of step {} was written with {} = {}",
                                         marker.step, difference->key, difference->left),
                     .value = difference->right,
                     .remedy = "export with the deck of the run",
                     .keys = {difference->key}});
}

Settings of_one_process(Settings settings) {
  settings.pipeline = {};
  settings.pipeline.stages = 1;
  return settings;
}

}  // namespace

void run_export(const Settings& settings, std::uint64_t step, const std::string& directory,
                const ProcessGrid& grid, ProgressThread& progress) {
  const std::string checkpoints = checkpoint_directory(settings);
  const CheckpointMarker marker = find_checkpoint(checkpoints, step);
  const auto run = find_run_file(settings.output.directory + "/run.h5");
  if (run && !run->run_id.empty() && run->run_id != marker.run_id)
    throw UserError(
        {.what = fmt::format("the checkpoint of step {} is of another run than run.h5 in {}",
                             marker.step, settings.output.directory),
         .file = checkpoints,
         .remedy = "wait for a checkpoint of this run, or see checkpoint.directory",
         .keys = {"checkpoint.directory"}});
  expect_same_model(settings, marker);
  const std::string target =
      !directory.empty() ? directory
                         : fmt::format("{}/model-step-{}", settings.output.directory, marker.step);
  std::error_code error;
  for (const std::string& place : saved_models(settings))
    if (fs::weakly_canonical(target, error) == fs::weakly_canonical(place, error))
      throw UserError({.what = "is where the run saves its model",
                       .file = target,
                       .remedy = "name another directory with --to"});
  if (fs::exists(fs::symlink_status(target, error)))
    throw UserError({.what = "is there already, and nothing is replaced",
                     .file = target,
                     .remedy = "remove it, or name another directory with --to"});
  require(find_input_files(settings, InputUse::train_between));
  Settings former = settings;  // the size and normalisation of the run's images are the model's
  former.data.images = parse_stored_deck(marker.deck, "the checkpoint's deck").data.images;
  ModelPlan plan = plan_model(of_one_process(former));
  if (settings.tokenizer.train_vocabulary > 0) {
    // Trained again from the data, which must be what the run had.
    const DataSplit data = read_samples(former.data, *plan.model, plan.vocabulary(), plan.tokens);
    check_data_of_restart(marker, data.train->fingerprint(), data.validation->fingerprint());
  }
  plan.weights.reset();
  plan.kept_files = read_kept_files(former, plan.model->shape().image, plan.warnings);
  print_warnings(plan.warnings);
  Stages stages;
  stages.push_back(plan.model->make_stage(stage_part(plan.partition, 0)));
  stages.front()->parameters().allocate(false, ProductPrecision::fp32);
  const ExecSpace exec;
  read_parameters(checkpoints + "/" + checkpoint_name(marker.step), marker,
                  parameter_state(exec, stages.front()->parameters()));
  progress.set_ends_at_once(false);  // a signal removes what is written so far
  save_model(exec, target, settings.output.model_precision, plan, grid, progress, stages);
  std::printf("%s: the model after step %llu\n", target.c_str(),
              static_cast<unsigned long long>(marker.step));
  std::fflush(stdout);
}

}  // namespace deltapipe
