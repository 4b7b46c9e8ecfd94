// SPDX-License-Identifier: BSD-3-Clause
// The sums over replicas of all stages of a rank, which advance together.
#pragma once

#include <vector>

#include "comm/pipeline/stage_sums.hpp"

namespace deltapipe {

/// Waits for the sums of one stage would leave the links idle that those of another stage use. The
/// sums of all stages therefore continue in every poll and every wait.
class RankSums {
 public:
  /// Adds the sums of the rank's next stage, which outlive this object's other calls.
  void add(StageSums& sums) { stages_.push_back(&sums); }

  /// Continues all started sums as far as that is possible without waiting.
  void poll();
  /// Completes the step's sums of gradients and statistics. The first of the rank's stages to call
  /// this in a step completes those of all stages; for the others it does nothing.
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
