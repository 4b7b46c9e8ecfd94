// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/resource_check.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "app/checkpoint/former_runs.hpp"
#include "app/preflight/warnings.hpp"
#include "comm/transport/collectives.hpp"
#include "comm/transport/machines.hpp"
#include "core/cache/spill_file.hpp"

namespace deltapipe {

namespace {

/// Numbers, a space and the directory, which may hold anything.
std::string text_of(const SpillNeed& need) {
  std::ostringstream text;
  text << need.machine << ' ' << need.file_system << ' ' << need.bytes << ' ' << need.available
       << ' ' << need.directory;
  return text.str();
}

SpillNeed need_in(const std::string& text) {
  std::istringstream stream(text);
  SpillNeed need;
  stream >> need.machine >> need.file_system >> need.bytes >> need.available;
  stream.get();
  need.directory = text.substr(static_cast<std::size_t>(stream.tellg()));
  return need;
}

/// Collective. UserError on rank 0, as check_spill_space() has it.
void compare_spill_space(ProgressThread& progress, const SpillNeed& mine) {
  std::vector<SpillNeed> needs;
  for (const std::string& text : gather(progress, progress.world(), text_of(mine), 0))
    needs.push_back(need_in(text));
  check_spill_space(needs);
}

}  // namespace

RankMemory check_resources(const Settings& settings, const ModelPlan& model,
                           const PipelineShape& shape, const FormerSpillFiles& former_files,
                           const ProcessGrid& grid, ProgressThread& progress) {
  // Each rank for itself: budgets and what is resident may differ.
  const auto rank = static_cast<std::size_t>(grid.rank());
  RankMemory predicted =
      predict_memory(settings, model, shape, grid.rank(), process_bytes(settings));
  const auto ranks = static_cast<std::size_t>(ranks_of(settings.pipeline));
  std::vector<std::uint64_t> bytes(2 * ranks);
  bytes[2 * rank] = predicted.host_peak();
  bytes[2 * rank + 1] = predicted.device_peak();
  check_budgets(settings, model, shape, grid.rank());
  std::vector<RankMachine> machines;
  {
    const auto lock = progress.pause();
    machines = machines_of_ranks(grid.world());
  }
  all_reduce(progress, grid.world(), bytes, Reduction::sum);
  if (grid.rank() == 0)
    print_warnings(
        warnings_of_disk(disk_needs(settings, model, shape, ranks_here(ranks, machines))));
  std::vector<RankPeak> peaks;
  for (std::size_t r = 0; r < ranks; ++r) peaks.push_back({bytes[2 * r], bytes[2 * r + 1]});
  check_memory(peaks, machines);
  compare_spill_space(progress, spill_need(settings, model, shape, grid.rank(),
                                           machines[rank].machine, former_files));
  return predicted;
}

CacheOwner check_spill_files(const Settings& settings, const ModelPlan& model,
                             const PipelineShape& shape, const FormerSpillFiles& former_files,
                             const std::optional<Restart>& restart, const ProcessGrid& grid,
                             ProgressThread& progress) {
  const std::vector<std::string> paths = spill_files(settings, model, shape, grid.rank());
  if (restart) check_budget_of_restart(*restart, settings, former_files, paths);
  CacheOwner owner;
  owner.run_id = restart ? restart->marker.run_id : "";
  // As rank 0 knows the directory, which others need not see.
  std::error_code error;
  if (grid.rank() == 0)
    owner.directory = std::filesystem::canonical(settings.output.directory, error).string();
  broadcast(progress, grid.world(), owner.directory, 0);
  owner.checkpoints =
      std::filesystem::weakly_canonical(checkpoint_directory(settings), error).string();
  owner.former_runs = former_runs(settings, owner.directory, grid, progress);
  for (const std::string& path : paths) check_spill_file_owner(path, owner);
  return owner;
}

}  // namespace deltapipe
