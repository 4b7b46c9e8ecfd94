// SPDX-License-Identifier: BSD-3-Clause
// All that a rank of a training run remembers from one step to the next.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "app/output/run_file.hpp"
#include "comm/pipeline/pipeline.hpp"
#include "core/base/state/state.hpp"
#include "models/optimizer.hpp"

namespace deltapipe {

/// How far a run has come, and sums over its steps; the same on all ranks but for `seconds`.
struct RunTotals {
  std::uint64_t seed = 0;
  std::uint64_t data_fingerprint = 0;  ///< of the training set
  std::uint64_t steps = 0;             ///< done: the optimizer's step count, too
  std::uint64_t evaluated = 0;         ///< the step of the last evaluation
  std::uint64_t bytes = 0;             ///< on the wire
  /// On the wire in evaluations, by EvaluationMode.
  std::array<std::uint64_t, 2> evaluation_bytes{};
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;
  double seconds = 0;
  double last_loss = 0;
  std::vector<RankRecord> ranks;  ///< sums, of every rank of a pipeline

  /// Part "run". Reading is a UserError when seed or data are not those that were written.
  StatePart state();
};

/// The whole list: of the pipeline, the optimizers of its stages and the totals. To be written
/// between steps and read before the first one.
std::vector<StatePart> training_state(Pipeline& pipeline,
                                      const std::vector<Optimizer<float>>& optimizers,
                                      RunTotals& totals);

}  // namespace deltapipe
