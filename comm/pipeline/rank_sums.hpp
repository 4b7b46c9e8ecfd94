// SPDX-License-Identifier: BSD-3-Clause
// The sums over replicas of all stages of a rank, which end together.
#pragma once

#include <vector>

#include "comm/pipeline/stage_sums.hpp"

namespace deltapipe {

/// A wait for the sums of one stage would leave idle what those of another stage could use. The
/// sums of all stages therefore continue in every wait for them: a step with two stages a rank and
/// a latency of 50 ms takes 5 % less time. During backward passes each stage polls its own sums
/// only. Those of another stage would delay boundary messages on a shared wire (up to 15 % of a
/// step).
class RankSums {
 public:
  /// Adds the sums of the rank's next stage, which outlive this object's other calls.
  void add(StageSums& sums) { stages_.push_back(&sums); }

  /// Completes the step's sums of gradients and statistics. The first of the rank's stages to call
  /// this in a step completes those of all stages; for the others it does nothing. The program of a
  /// step has all passes of all stages of the rank before the first call.
  void finish_step();
  /// Sums the first moments, in place.
  void sum_moments();
  /// Sums the changes of parameters, in place of gradients.
  void sum_changes();
  /// Begins a step. All sums of the step before are complete.
  void begin_step() { is_finished_ = false; }

 private:
  /// Calls `start` for each stage and completes the sums that it returns.
  void run(std::vector<ReplicaSum*> (StageSums::*start)());

  std::vector<StageSums*> stages_;
  bool is_finished_ = false;
};

}  // namespace deltapipe
