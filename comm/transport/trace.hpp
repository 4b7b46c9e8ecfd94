// SPDX-License-Identifier: BSD-3-Clause
// Collects the events of one step from all ranks in one file for chrome://tracing or Perfetto.
#pragma once

#include <string>
#include <vector>

#include "comm/transport/progress_thread.hpp"
#include "core/base/observe/trace.hpp"

namespace deltapipe {

/// Writes `path` on rank 0 (pid = rank, one track per thread or channel, times on rank 0's clock
/// from the earliest event). Collective over progress.world(). Throws UserError on rank 0 when the
/// file cannot be written.
void write_trace(ProgressThread& progress, const std::vector<TraceEvent>& events,
                 const std::string& path);

}  // namespace deltapipe
