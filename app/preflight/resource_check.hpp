// SPDX-License-Identifier: BSD-3-Clause
// Checks that all machines have room for a training before it starts.
#pragma once

#include <optional>

#include "app/checkpoint/restart.hpp"
#include "app/checkpoint/spill_references.hpp"
#include "app/deck/settings.hpp"
#include "app/preflight/memory_prediction.hpp"
#include "app/session/session.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/cache/settings.hpp"

namespace deltapipe {

/// Collective. Compares the memory and the disk space that all ranks need with what their machines
/// have, and returns the prediction for this rank. Rank 0 prints warnings. UserError if the run
/// does not fit.
RankMemory check_resources(const Settings& settings, const ModelPlan& model,
                           const PipelineShape& shape, const FormerSpillFiles& former_files,
                           const ProcessGrid& grid, ProgressThread& progress);

/// Collective. Returns the owner of this run's spill files, without a name if the run is new.
/// UserError if a file in their place is one that another run, or this run with other settings, is
/// to continue.
CacheOwner check_spill_files(const Settings& settings, const ModelPlan& model,
                             const PipelineShape& shape, const FormerSpillFiles& former_files,
                             const std::optional<Restart>& restart, const ProcessGrid& grid,
                             ProgressThread& progress);

}  // namespace deltapipe
