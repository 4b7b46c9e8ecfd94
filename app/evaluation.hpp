// SPDX-License-Identifier: BSD-3-Clause
// Loss over a data set.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/pipeline/pipeline.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

struct EvaluationResult {
  double loss = 0;  ///< mean over all predicted tokens, nats
  double perplexity = 0;
  std::uint64_t tokens = 0;
  /// On the wire, headers included, all replicas: to the next stage at each boundary, token rows.
  std::vector<std::uint64_t> forward_bytes;
  std::uint64_t tied_row_bytes = 0;
};

/// All ranks call it together; every rank gets the result.
EvaluationResult evaluate(Pipeline& pipeline, const TokenDataset& data, const StepPlanner& planner,
                          const ProcessGrid& grid, ProgressThread& progress);

}  // namespace deltapipe
