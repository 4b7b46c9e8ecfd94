// SPDX-License-Identifier: BSD-3-Clause
// The lowest validation loss of a run, for training.keep_best and training.patience.
#pragma once

#include <cstdint>
#include <limits>

namespace deltapipe {

class BestEvaluation {
 public:
  /// An evaluation after `step` steps. True: its loss is lower than all before. An equal loss is
  /// not, and NaN and infinity never are.
  bool add(std::uint64_t step, double loss) {
    if (!(loss < loss_)) {
      ++since_;
      return false;
    }
    step_ = step;
    loss_ = loss;
    since_ = 0;
    return true;
  }

  bool is_known() const { return loss_ < std::numeric_limits<double>::infinity(); }
  std::uint64_t step() const { return step_; }
  double loss() const { return loss_; }
  /// Evaluations since the best one, or all if there is none.
  std::uint64_t since() const { return since_; }

 private:
  std::uint64_t step_ = 0, since_ = 0;
  double loss_ = std::numeric_limits<double>::infinity();
};

}  // namespace deltapipe
