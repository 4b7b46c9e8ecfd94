// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/former_output.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "app/checkpoint/checkpoint_files.hpp"
#include "app/checkpoint/restart.hpp"
#include "app/checkpoint/restart_deck.hpp"
#include "app/deck/deck.hpp"
#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

namespace fs = std::filesystem;

namespace {

constexpr const char* kWayOut =
    "set another output.directory, or output.overwrite = true to start from scratch and replace it";

std::string run_file_of(const Settings& settings) {
  return settings.output.directory + "/run.h5";
}

/// The first key that makes another run of it, for its results or the times that it measures.
std::optional<DeckDifference> difference_between(const Settings& former, const Settings& settings,
                                                 bool is_finished) {
  std::vector<std::string_view> ignored = {"checkpoint.",
                                           "generate.",
                                           "plan.",
                                           "output.directory",
                                           "output.overwrite",
                                           "output.log_every",
                                           "pipeline.timeout",
                                           "pipeline.step_timeout"};
  // Nobody compares the times of an unfinished run that is repeated.
  if (!is_finished) ignored.insert(ignored.end(), {"output.", "network.", "pipeline.", "cache."});
  return first_difference(former, settings, ignored);
}

[[noreturn]] void refuse_deck(const Settings& settings, const std::string& what,
                              const std::string& value, const std::string& key) {
  std::vector<std::string> keys = {"output.directory"};
  if (!key.empty()) keys.insert(keys.begin(), key);
  throw UserError({.what = fmt::format("the run in {} {}", settings.output.directory, what),
                   .value = value,
                   .remedy = kWayOut,
                   .keys = std::move(keys)});
}

void expect_same_deck(const FormerRun& former, const Settings& settings) {
  std::optional<DeckDifference> difference;
  try {
    difference = difference_between(parse_stored_deck(former.deck, "its deck"), settings,
                                    former.is_finished);
  } catch (const UserError& error) {
    refuse_deck(settings, fmt::format("has a deck that cannot be compared: {}", error.what()), "",
                "");
  }
  if (difference)
    refuse_deck(settings,
                fmt::format("has another deck: {} = {}", difference->key, difference->left),
                difference->right, difference->key);
}

/// A model that the run would replace, without leave; empty: none. An empty directory may be a
/// mount point.
std::string model_in_place(const Settings& settings) {
  if (settings.output.overwrite) return "";
  std::error_code error;
  for (const std::string& model : saved_models(settings))
    if (fs::is_directory(fs::symlink_status(model, error)) && !fs::is_empty(model, error))
      return model;
  return "";
}

void expect_no_model(const Settings& settings) {
  if (const std::string model = model_in_place(settings); !model.empty())
    throw UserError({.what = "a model is in the place of the one to train",
                     .file = model,
                     .remedy = kWayOut,
                     .keys = {"output.directory"}});
}

/// True when a run with this deck, itself started from scratch on purpose, continues this one:
/// requeued jobs repeat their command.
bool goes_on(const std::string& deck, const Settings& settings) {
  try {
    CheckpointMarker marker;
    marker.deck = deck;
    check_deck_of_restart(settings, marker);
    return parse_stored_deck(deck, "its deck").output.overwrite;
  } catch (const UserError&) {
    return false;
  }
}

/// True when the run was finished by this very job, whose command says output.overwrite: a job that
/// is requeued after its end, as when its node failed, repeats the command.
bool is_of_this_job(const FormerRun& found, const Settings& settings) {
  if (found.slurm_job.empty() || found.slurm_job != slurm_job()) return false;
  try {
    const Settings theirs = parse_stored_deck(found.deck, "its deck");
    return theirs.output.overwrite && !difference_between(theirs, settings, true);
  } catch (const UserError&) {
    return false;
  }
}

/// Without a run file that can be read: by the newest checkpoint. Others may write to a directory
/// that the deck names, and finished runs leave milestones.
std::optional<CheckpointMarker> newest_checkpoint(const Settings& settings) {
  const std::string directory = checkpoint_directory(settings);
  const bool is_own_directory = settings.checkpoint.directory.empty();
  const std::string output = absolute_output_directory(settings);
  const std::vector<std::uint64_t> steps = checkpoint_steps(directory);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step)
    if (auto marker = find_marker(directory, *step);
        marker && (is_own_directory || (marker->output_directory == output && !marker->milestone)))
      return marker;
  return std::nullopt;
}

/// True: a model that is there now is the run's own, which has the same deck and began where there
/// was none. It ended before it could note that it was finished, as on a full disk.
bool has_saved_model(const FormerRun& former, const Settings& settings) {
  try {
    const Settings theirs = parse_stored_deck(former.deck, "its deck");
    return !saved_models(theirs).empty() && !theirs.output.overwrite &&
           !difference_between(theirs, settings, false);
  } catch (const UserError&) {
    return false;
  }
}

/// An unfinished run without checkpoints. A run that has measured nothing yet is replaced by any
/// other: a user who ends it in its first moments to correct the deck loses nothing.
void expect_replaceable(const Settings& settings, const FormerRun& former) {
  if (settings.output.overwrite) return;
  if (former.steps + former.evaluations > 0) expect_same_deck(former, settings);
  if (!has_saved_model(former, settings)) expect_no_model(settings);
}

FormerRun look(const Settings& settings) {
  const bool overwrites = settings.output.overwrite;
  const std::string path = run_file_of(settings);
  const auto found = find_run_file(path);
  if (!found) {
    if (const auto newest = newest_checkpoint(settings)) {
      if (overwrites && !goes_on(newest->deck, settings)) return {};
      std::error_code ignored;
      const bool is_there = fs::exists(fs::symlink_status(path, ignored));
      // A run that is not finished may have best/, too.
      if (newest->milestone && (is_there || model_in_place(settings) == model_directory(settings)))
        throw UserError({.what = fmt::format("{}, and the run of these checkpoints may be finished",
                                             is_there ? "cannot be read" : "is missing"),
                         .file = path,
                         .remedy = fmt::format("put it back, {}", kWayOut),
                         .keys = {"output.directory"}});
      return {newest->run_id, false, true, newest->deck, newest->step, 0, ""};
    }
    std::error_code error;
    if (!overwrites && fs::exists(fs::symlink_status(path, error)))
      throw UserError({.what = "is not a run file that can be read, and in the place of one",
                       .file = path,
                       .remedy = kWayOut,
                       .keys = {"output.directory"}});
    expect_no_model(settings);
    return {};
  }
  if (found->is_finished) {
    if (overwrites && !is_of_this_job(*found, settings)) return {};
    expect_same_deck(*found, settings);
  } else if (overwrites && !goes_on(found->deck, settings)) {
    return {};
  } else if (found->run_id.empty()) {
    expect_replaceable(settings, *found);
  }
  return *found;
}

}  // namespace

FormerRun find_former_run(const Settings& settings, const ProcessGrid& grid,
                          ProgressThread& progress) {
  FormerRun former;
  if (grid.rank() == 0) former = look(settings);
  broadcast(progress, grid.world(), former.run_id, 0);
  std::string finished = former.is_finished ? "yes" : "";
  broadcast(progress, grid.world(), finished, 0);
  former.is_finished = !finished.empty();
  return former;
}

void check_start_from_scratch(const Settings& settings, const FormerRun& former) {
  expect_replaceable(settings, former);
  if (former.steps > 0)
    std::printf("the unfinished run in %s has no checkpoint: its %llu step(s) are repeated\n",
                settings.output.directory.c_str(), static_cast<unsigned long long>(former.steps));
}

std::string slurm_job() {
  const char* const job = std::getenv("SLURM_JOB_ID");
  return job == nullptr ? "" : job;
}

std::string describe_start(const Settings& settings) {
  const FormerRun former = look(settings);
  if (former.is_finished) return "the run in output.directory is already finished";
  if (former.has_checkpoints) return "the run in output.directory continues from its checkpoints";
  if (!former.run_id.empty()) expect_replaceable(settings, former);
  return {};
}

void report_finished(const Settings& settings, const FormerRun& former) {
  std::error_code error;
  std::string lacks;
  for (const std::string& model : saved_models(settings))
    if (!fs::is_directory(model, error))
      lacks += ", but its " + fs::path(model).filename().string() + "/ is gone";
  std::printf(
      "the run in %s is already finished (%llu steps)%s: nothing is changed. To train from "
      "scratch, %s\n",
      settings.output.directory.c_str(), static_cast<unsigned long long>(former.steps),
      lacks.c_str(),
      settings.output.overwrite
          ? "set another output.directory, or remove this one: output.overwrite = true replaces "
            "no run that the same SLURM job has finished"
          : "set another output.directory, or output.overwrite = true to replace it");
  for (const auto* files : {&settings.data.train, &settings.data.validation})
    for (const std::string& file : *files) {
      const auto changed = fs::last_write_time(file, error);
      if (!error && changed > fs::last_write_time(run_file_of(settings), error) && !error)
        std::printf("%s is newer than this run, which did not see its present content\n",
                    file.c_str());
    }
  std::fflush(stdout);
}

}  // namespace deltapipe
