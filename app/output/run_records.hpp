// SPDX-License-Identifier: BSD-3-Clause
// Records of a run file in addition to its steps.
#pragma once

#include <vector>

#include "app/deck/settings.hpp"
#include "app/output/run_content.hpp"
#include "app/preflight/memory_prediction.hpp"
#include "app/session/session.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// Everything that this rank knows without the others; leaves out run_id and hosts.
RunAttributes run_attributes(const Settings& settings, const ModelPlan& plan);

/// Prints the line that names program, MPI, threads and hosts.
void print_program(const RunAttributes& attributes);

/// Collective. Peak and prediction of every rank, on rank 0; empty elsewhere.
std::vector<RankMemoryRecord> gather_memory(const RankMemory& predicted, const ProcessGrid& grid,
                                            ProgressThread& progress);

}  // namespace deltapipe
