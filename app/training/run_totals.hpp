// SPDX-License-Identifier: BSD-3-Clause
// Progress of a training run, and sums over its steps.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/pipeline/step_record.hpp"
#include "core/base/state/state.hpp"

namespace deltapipe {

/// Returns the bytes of a step on the wire, all ranks together.
std::uint64_t wire_bytes(const StepRecord& record);

/// The same on all ranks except for `seconds`.
struct RunTotals {
  std::uint64_t seed = 0;
  std::uint64_t data_fingerprint = 0;  ///< of the training set
  std::uint64_t steps = 0;             ///< completed steps; also the optimizer's step count
  std::uint64_t evaluated = 0;         ///< step of the last evaluation
  std::uint64_t bytes = 0;             ///< bytes on the wire
  /// Bytes on the wire in evaluations, indexed by EvaluationMode.
  std::array<std::uint64_t, 2> evaluation_bytes{};
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;
  double seconds = 0;  ///< training time without evaluations and output
  double last_loss = 0;
  std::vector<RankRecord> ranks;  ///< sums, one entry per rank of a pipeline

  /// Adds a completed step, except for its seconds.
  void add(const StepRecord& record);

  /// Returns the part "run" of a rank's state. Reading it throws UserError if seed or data differ
  /// from those that were written.
  StatePart state();
};

}  // namespace deltapipe
