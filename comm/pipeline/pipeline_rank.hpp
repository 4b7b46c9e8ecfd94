// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "comm/boundary/rank_links.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/base/parallel/execution.hpp"
#include "core/cache/io_thread.hpp"

namespace deltapipe {

class RankSums;

/// Objects that a rank's stages share.
struct PipelineRank {
  const ProcessGrid& grid;
  ProgressThread& progress;
  ExecutionInstances instances;
  CacheIoThread* cache_io = nullptr;  ///< null: no cache spills
  RankLinks& links;
  RankSums& sums;
};

}  // namespace deltapipe
