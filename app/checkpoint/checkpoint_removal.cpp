// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/checkpoint_removal.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace deltapipe {

namespace {

/// By the marker or, where that is damaged, by the step.
bool is_milestone_of(const std::string& directory, std::uint64_t step,
                     const CheckpointSettings& settings) {
  const std::optional<CheckpointMarker> marker = find_marker(directory, step);
  return marker ? marker->milestone : is_milestone(settings, step);
}

}  // namespace

bool is_milestone(const CheckpointSettings& settings, std::uint64_t step) {
  return settings.milestone_every > 0 && step % settings.milestone_every == 0;
}

void remove_or_warn(const std::string& directory, std::uint64_t step) {
  const std::string left = remove_checkpoint(directory, step);
  if (left.empty()) return;
  std::fprintf(stderr,
               "\ndeltapipe: warning: the checkpoint of step %llu, which is no longer needed, "
               "cannot be removed; its remaining files are in %s\n",
               static_cast<unsigned long long>(step), left.c_str());
}

void remove_superseded(const std::string& directory, const CheckpointMarker& newest,
                       const CheckpointSettings& settings) {
  int kept = 0;
  std::vector<std::uint64_t> steps = checkpoint_steps(directory);
  std::reverse(steps.begin(), steps.end());
  for (const std::uint64_t step : steps) {
    const std::optional<CheckpointMarker> marker = find_marker(directory, step);
    const bool stays = marker ? marker->run_id == newest.run_id && step <= newest.step &&
                                    (marker->milestone || kept < settings.keep)
                              : is_milestone(settings, step);
    if (stays && marker && !marker->milestone) ++kept;
    if (!stays) remove_or_warn(directory, step);
  }
}

void remove_checkpoints_but(const std::string& directory, const CheckpointSettings& settings,
                            std::optional<std::uint64_t> one) {
  for (const std::uint64_t step : checkpoint_steps(directory))
    if (step != one && !is_milestone_of(directory, step, settings)) remove_or_warn(directory, step);
}

void remove_checkpoints_of(const std::string& directory, const std::string& run_id) {
  for (const std::uint64_t step : checkpoint_steps(directory))
    if (const auto marker = find_marker(directory, step);
        marker && marker->run_id == run_id && !marker->milestone)
      remove_or_warn(directory, step);
}

}  // namespace deltapipe
