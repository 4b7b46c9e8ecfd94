// SPDX-License-Identifier: BSD-3-Clause
// Gathers the events of one step from all ranks into one file for chrome://tracing or Perfetto.
#pragma once

#include <string>
#include <vector>

#include "comm/transport/progress_thread.hpp"
#include "core/base/observe/trace.hpp"

namespace deltapipe {

/// Collective over progress.world(). Rank 0 writes `path` (pid = rank, one track a thread or
/// channel, times on rank 0's clock from the earliest event). Throws UserError on rank 0 when the
/// file cannot be written.
void write_trace(ProgressThread& progress, const std::vector<TraceEvent>& events,
                 const std::string& path);

}  // namespace deltapipe
