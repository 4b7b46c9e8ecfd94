// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/rank_sums.hpp"

#include <cstddef>
#include <utility>

namespace deltapipe {

void RankSums::finish_step() {
  if (!std::exchange(is_finished_, true)) run(&StageSums::start_rest);
}

void RankSums::sum_moments() {
  run(&StageSums::start_moments);
}

void RankSums::sum_changes() {
  run(&StageSums::start_changes);
}

void RankSums::run(std::vector<ReplicaSum*> (StageSums::*start)()) {
  std::vector<std::vector<ReplicaSum*>> of_stage;
  std::vector<ReplicaSum*> all;
  for (StageSums* stage : stages_) {
    of_stage.push_back((stage->*start)());
    all.insert(all.end(), of_stage.back().begin(), of_stage.back().end());
  }
  if (!all.empty()) stages_.front()->complete(all);
  for (std::size_t i = 0; i < stages_.size(); ++i) stages_[i]->finish(of_stage[i]);
}

}  // namespace deltapipe
