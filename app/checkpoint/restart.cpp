// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/restart.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <utility>

#include "app/checkpoint/restart_deck.hpp"
#include "app/checkpoint/spill_references.hpp"
#include "app/deck/deck.hpp"
#include "comm/boundary/end_name.hpp"
#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/interruption.hpp"
#include "core/files/state_file.hpp"

namespace deltapipe {

namespace {

/// As far as it is known before the model is read: without a partition in the deck it is the one of
/// a deck without a partition.
bool has_partition_of(const CheckpointMarker& marker, const Settings& settings) {
  if (!settings.pipeline.partition.empty()) return settings.pipeline.partition == marker.partition;
  return parse_stored_deck(marker.deck, "the checkpoint's deck").pipeline.partition.empty();
}

bool has_same_ranks(const CheckpointMarker& marker, const PipelineSettings& pipeline) {
  return marker.stages == pipeline.stages && marker.stages_per_rank == pipeline.stages_per_rank &&
         marker.replicas == pipeline.replicas;
}

bool reads_own_file_only(const CheckpointMarker& marker, const Settings& settings) {
  return has_same_ranks(marker, settings.pipeline) && has_partition_of(marker, settings);
}

std::vector<std::string> files_to_read(const CheckpointMarker& marker, const Settings& settings,
                                       int rank) {
  std::vector<std::string> names;
  const bool same = reads_own_file_only(marker, settings);
  for (int r = 0; r < marker.ranks(); ++r)
    if (!same || r == rank) names.push_back(rank_file_name(r));
  if (rank == 0) names.emplace_back(kRunFileCopy);
  return names;
}

/// Files of ranks that this rank looks into for all: of its own layout its own.
std::vector<int> share_of_ranks(const CheckpointMarker& marker, const Settings& settings,
                                int rank) {
  if (reads_own_file_only(marker, settings)) return {rank};
  const int ranks = settings.pipeline.pipeline_ranks() * settings.pipeline.replicas;
  std::vector<int> share;
  for (int former = rank; former < marker.ranks(); former += ranks) share.push_back(former);
  return share;
}

bool refers_to_spill_files(const std::string& path) {
  const std::vector<std::string> parts = StateFileReader(path).part_names();
  return std::any_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return spilled_part(path, part) != nullptr; });
}

/// UserError unless the spill files that a rank's state refers to are there.
void check_spill_files(const std::string& path, const std::string& directory) {
  for (const SpillReference& reference : spill_references(path, directory))
    check_spill_file(reference);
}

/// One rank's look at one checkpoint.
struct Inspection {
  std::optional<CheckpointMarker> marker;
  std::string problem;  ///< empty: none, or it is another run's
};

Inspection inspect(const std::string& checkpoint, const std::string& run_id,
                   const Settings& settings, int rank) {
  try {
    CheckpointMarker marker = read_marker(checkpoint);
    if (marker.run_id != run_id) return {};
    for (const std::string& name : files_to_read(marker, settings, rank))
      check_file_size(checkpoint, marker.file(name));
    for (const std::string& name : files_to_hash(marker, settings, rank))
      check_file(checkpoint, marker.file(name), throw_if_interrupted);
    if (reads_own_file_only(marker, settings) && settings.checkpoint.mode == CheckpointMode::exact)
      check_spill_files(checkpoint + "/" + rank_file_name(rank), cache_directory(settings));
    return {std::move(marker), ""};
  } catch (const UserError& error) {
    return {std::nullopt, error.what()};
  }
}

void tell_skipped(std::uint64_t step, const std::vector<std::string>& problems) {
  for (std::size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    std::fprintf(stderr,
                 "deltapipe: warning: the checkpoint of step %llu is skipped: rank %zu: %s\n",
                 static_cast<unsigned long long>(step), rank, problems[rank].c_str());
    return;
  }
}

bool has_checkpoint_of(const std::string& directory, const std::vector<std::uint64_t>& steps,
                       const std::string& run_id) {
  return std::any_of(steps.begin(), steps.end(), [&](std::uint64_t step) {
    const std::optional<CheckpointMarker> marker = find_marker(directory, step);
    return marker && marker->run_id == run_id;
  });
}

/// A run from scratch would remove checkpoints whose disk may only be missing for now.
[[noreturn]] void refuse_to_start_over(const Settings& settings) {
  throw UserError(
      {.what = "this unfinished run has written checkpoints, but no checkpoint exists that "
               "all ranks can read",
       .file = checkpoint_directory(settings),
       .remedy = "put back what is missing (checkpoints, spill files of "
                 "cache.directory), continue without the memories of spill files with "
                 "checkpoint.mode = \"resync\", or start from scratch " +
                 std::string(settings.output.overwrite ? "in another output.directory"
                                                       : "with output.overwrite = true or another "
                                                         "output.directory"),
       .keys = {"checkpoint.directory", "output.directory"}});
}

/// Collective.
bool refers_to_spill_files(const Restart& restart, const Settings& settings,
                           const ProcessGrid& grid, ProgressThread& progress) {
  std::uint64_t refers = 0;
  for (const int r : share_of_ranks(restart.marker, settings, grid.rank()))
    if (refers_to_spill_files(restart.checkpoint + "/" + rank_file_name(r))) refers = 1;
  return all_reduce(progress, grid.world(), refers, Reduction::max) == 1;
}

bool reads_memories(const Restart& restart, const Settings& settings) {
  return restart.marker.with_memories &&
         (settings.checkpoint.mode == CheckpointMode::exact || !restart.refers_to_files ||
          !reads_own_file_only(restart.marker, settings));
}

}  // namespace

std::vector<std::string> files_to_hash(const CheckpointMarker& marker, const Settings& settings,
                                       int rank) {
  std::vector<std::string> names;
  for (const int former : share_of_ranks(marker, settings, rank))
    names.push_back(rank_file_name(former));
  if (rank == 0) names.emplace_back(kRunFileCopy);
  return names;
}

std::optional<Restart> find_restart(const Settings& settings, const FormerRun& former,
                                    const ProcessGrid& grid, ProgressThread& progress) {
  const std::string directory = checkpoint_directory(settings);
  const std::string& run_id = former.run_id;
  if (run_id.empty()) return std::nullopt;
  std::vector<std::uint64_t> steps = checkpoint_steps(directory);
  bool skipped = false;
  for (;;) {
    // The newest that all ranks have, by its name.
    const std::uint64_t mine = steps.empty() ? 0 : steps.back();
    const std::uint64_t step = all_reduce(progress, grid.world(), mine, Reduction::min);
    if (step == 0) {
      const bool had_one =
          skipped || former.has_checkpoints || has_checkpoint_of(directory, steps, run_id);
      const std::uint64_t has_one = had_one ? 1 : 0;
      if (all_reduce(progress, grid.world(), has_one, Reduction::max) > 0)
        refuse_to_start_over(settings);
      return std::nullopt;
    }
    while (!steps.empty() && steps.back() > step) steps.pop_back();
    const bool is_here = !steps.empty() && steps.back() == step;
    Restart restart{directory + "/" + checkpoint_name(step), {}};
    Inspection found;
    if (is_here) {
      steps.pop_back();
      found = inspect(restart.checkpoint, run_id, settings, grid.rank());
    } else {
      found.problem = directory + " has no " + checkpoint_name(step);
    }
    const std::uint64_t whole = found.marker ? 1 : 0;
    const bool agreed = all_reduce(progress, grid.world(), whole, Reduction::min) == 1;
    if (agreed) {
      restart.marker = std::move(*found.marker);
      restart.refers_to_files = refers_to_spill_files(restart, settings, grid, progress);
      restart.with_memories = reads_memories(restart, settings);
      return restart;
    }
    skipped = skipped || !found.problem.empty();
    const auto problems = gather(progress, grid.world(), found.problem, 0);
    if (grid.rank() == 0) tell_skipped(step, problems);
  }
}

std::string absolute_output_directory(const Settings& settings) {
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::weakly_canonical(settings.output.directory, error);
  return error ? settings.output.directory : path.string();
}

bool has_same_micro_batches(const CheckpointMarker& marker, const Settings& settings) {
  return parse_stored_deck(marker.deck, "the checkpoint's deck").training.micro_batches ==
         settings.training.micro_batches;
}

bool is_same_layout(const CheckpointMarker& marker, const Settings& settings,
                    const std::vector<int>& partition) {
  return has_same_ranks(marker, settings.pipeline) && marker.partition == partition &&
         has_same_micro_batches(marker, settings);
}

namespace {

/// References of the ranks whose spill files this one continues or sets aside.
std::vector<SpillReference> references_of(const Restart& restart, const Settings& settings,
                                          bool is_same, int rank) {
  std::vector<SpillReference> references;
  if (!restart.refers_to_files) return references;
  for (int r = 0; r < restart.marker.ranks(); ++r) {
    if (is_same && r != rank) continue;
    for (SpillReference& reference :
         spill_references(restart.checkpoint + "/" + rank_file_name(r), cache_directory(settings)))
      references.push_back(std::move(reference));
  }
  return references;
}

}  // namespace

FormerSpillFiles former_spill_files(const Restart& restart, const Settings& settings,
                                    const std::vector<int>& partition, int rank) {
  const bool is_same = is_same_layout(restart.marker, settings, partition);
  FormerSpillFiles files;
  if (is_same && !restart.with_memories) return files;
  for (const SpillReference& reference : references_of(restart, settings, is_same, rank))
    if (is_same)
      files.reopened.insert(reference.path);
    else if (is_in_place(reference))
      files.set_aside.insert(reference.path);
  return files;
}

void check_budget_of_restart(const Restart& restart, const Settings& settings,
                             const FormerSpillFiles& former_files,
                             const std::vector<std::string>& spill_files) {
  const std::set<std::string>& reopened = former_files.reopened;
  if (std::all_of(reopened.begin(), reopened.end(), [&](const std::string& path) {
        return std::find(spill_files.begin(), spill_files.end(), path) != spill_files.end();
      }))
    return;
  const Settings former = parse_stored_deck(restart.marker.deck, "the checkpoint's deck");
  Settings now = former;
  now.cache.budget_bytes = settings.cache.budget_bytes;
  const auto difference = first_difference(former, now);
  refuse_change(restart.marker, "cache.budget", difference ? difference->left : "another value",
                difference ? difference->right : std::to_string(now.cache.budget_bytes),
                " so that nothing spills while the checkpoint refers to spill files");
}

void make_room_for_spill_files(const Restart& restart, const Settings& settings,
                               const std::vector<int>& partition, int rank,
                               const CacheOwner& owner) {
  const bool is_same = is_same_layout(restart.marker, settings, partition);
  const std::vector<SpillReference> references = references_of(restart, settings, is_same, rank);
  is_same ? put_back(references, owner) : set_aside(references, owner);
}

std::vector<StatePart> without_memories(std::vector<StatePart> parts) {
  std::erase_if(parts,
                [](const StatePart& part) { return EndName::of_part(part.name).has_value(); });
  return parts;
}

}  // namespace deltapipe
