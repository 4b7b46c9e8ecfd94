// SPDX-License-Identifier: BSD-3-Clause
// The runs whose spill files a run may replace.
#pragma once

#include <set>
#include <string>

#include "app/deck/settings.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// Collective, before the start changes the run file or checkpoints. The runs that this output
/// directory knows by its run file and checkpoints, and those whose spill files in the ranks' cache
/// directories name it although nothing of them is left: no checkpoints where they put them, and no
/// run file in a directory beside it, which is where one lies that was moved away. Rank 0 says so
/// of the latter. `output`: the directory as files name it.
std::set<std::string> former_runs(const Settings& settings, const std::string& output,
                                  const ProcessGrid& grid, ProgressThread& progress);

}  // namespace deltapipe
