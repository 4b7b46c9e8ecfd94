// SPDX-License-Identifier: BSD-3-Clause
// Removal of checkpoints that are no longer needed. What cannot be removed is a warning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "app/checkpoint/checkpoint_files.hpp"
#include "app/deck/settings.hpp"

namespace deltapipe {

/// Returns true if the settings make the checkpoint of a step a milestone.
bool is_milestone(const CheckpointSettings& settings, std::uint64_t step);

/// Removes the checkpoint of a step.
void remove_or_warn(const std::string& directory, std::uint64_t step);

/// Removes checkpoints of other runs, of other courses of this one, and those older than the
/// newest `keep`; a milestone whose marker is damaged stays.
void remove_superseded(const std::string& directory, const CheckpointMarker& newest,
                       const CheckpointSettings& settings);

/// Removes all checkpoints but milestones and that of step `one`.
void remove_checkpoints_but(const std::string& directory, const CheckpointSettings& settings,
                            std::optional<std::uint64_t> one);

/// Removes the checkpoints of a run, but not its milestones.
void remove_checkpoints_of(const std::string& directory, const std::string& run_id);

}  // namespace deltapipe
