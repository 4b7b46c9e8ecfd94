// SPDX-License-Identifier: BSD-3-Clause
// Whether the disks of all machines have room for the ranks' spill files, before training starts.
#pragma once

#include "app/preflight/memory_prediction.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// Collective over progress.world(). UserError on rank 0, as check_spill_space() has it.
void compare_spill_space(ProgressThread& progress, const SpillNeed& mine);

}  // namespace deltapipe
