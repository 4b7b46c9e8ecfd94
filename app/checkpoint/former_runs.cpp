// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/former_runs.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "app/checkpoint/checkpoint_files.hpp"
#include "app/checkpoint/spill_references.hpp"
#include "app/output/former_run_file.hpp"
#include "comm/transport/collectives.hpp"
#include "core/base/printable.hpp"

namespace deltapipe {

namespace fs = std::filesystem;

namespace {

/// Runs and where they put checkpoints.
using Runs = std::map<std::string, std::string>;

/// Texts without line breaks stay apart; others belong to no run of this program's.
std::string runs_text(const Runs& runs) {
  std::string text;
  for (const auto& [run_id, directory] : runs) {
    if ((run_id + directory).find('\n') != std::string::npos) continue;
    text += run_id;
    text += '\n';
    text += directory;
    text += '\n';
  }
  return text;
}

Runs runs_in(const std::string& text) {
  Runs runs;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t middle = text.find('\n', begin), end = text.find('\n', middle + 1);
    runs.emplace(text.substr(begin, middle - begin), text.substr(middle + 1, end - middle - 1));
    begin = end + 1;
  }
  return runs;
}

/// Collective. Those of all ranks.
Runs share(const Runs& mine, const ProcessGrid& grid, ProgressThread& progress) {
  return runs_in(all_gather(progress, grid.world(), runs_text(mine)));
}

std::vector<CheckpointMarker> markers_in(const std::string& directory) {
  std::vector<CheckpointMarker> markers;
  for (const std::uint64_t step : checkpoint_steps(directory))
    if (auto marker = find_marker(directory, step)) markers.push_back(std::move(*marker));
  return markers;
}

bool has_checkpoints_of(const std::string& run_id, const std::string& directory) {
  const std::vector<CheckpointMarker> markers = markers_in(directory);
  return std::any_of(markers.begin(), markers.end(),
                     [&](const CheckpointMarker& marker) { return marker.run_id == run_id; });
}

/// By the run file and the checkpoints that are there now.
Runs runs_known_to(const Settings& settings, const std::string& output) {
  Runs runs;
  const auto found = find_run_file(settings.output.directory + "/run.h5");
  if (found && !found->run_id.empty()) runs.emplace(found->run_id, "");
  for (const CheckpointMarker& marker : markers_in(checkpoint_directory(settings)))
    if (marker.output_directory == output) runs.emplace(marker.run_id, "");
  return runs;
}

/// A directory that was moved is mostly still beside its former place.
bool is_beside(const std::string& run_id, const std::string& output) {
  std::error_code error;
  for (fs::directory_iterator entry(fs::path(output).parent_path(), error), end;
       !error && entry != end; entry.increment(error)) {
    const auto found = find_run_file((entry->path() / "run.h5").string());
    if (found && found->run_id == run_id) return true;
  }
  return false;
}

}  // namespace

std::set<std::string> former_runs(const Settings& settings, const std::string& output,
                                  const ProcessGrid& grid, ProgressThread& progress) {
  const Runs known = share(runs_known_to(settings, output), grid, progress);
  std::set<std::string> former;
  for (const auto& [run_id, directory] : known) former.insert(run_id);

  Runs unknown;
  for (const CacheOwner& run : runs_that_need_spill_files(cache_directory(settings)))
    if (run.directory == output && !run.run_id.empty() && !known.contains(run.run_id))
      unknown.emplace(run.run_id, run.checkpoints);
  unknown = share(unknown, grid, progress);
  std::vector<std::uint64_t> is_left;
  for (const auto& [run_id, directory] : unknown)
    is_left.push_back(directory.empty() || has_checkpoints_of(run_id, directory) ||
                      (grid.rank() == 0 && is_beside(run_id, output)));
  if (unknown.empty()) return former;
  all_reduce(progress, grid.world(), std::span<std::uint64_t>(is_left), Reduction::max);
  std::size_t i = 0;
  for (const auto& [run_id, directory] : unknown) {
    if (is_left[i++] > 0) continue;
    former.insert(run_id);
    if (grid.rank() == 0)
      std::fprintf(stderr,
                   "deltapipe: warning: spill files of run %s in %s are no longer needed: its "
                   "checkpoints are gone\n",
                   printable(run_id).c_str(), output.c_str());
  }
  return former;
}

}  // namespace deltapipe
