// SPDX-License-Identifier: BSD-3-Clause
// The lowest validation loss of a run, for training.keep_best and training.patience.
#pragma once

#include <cstdint>
#include <limits>

namespace deltapipe {

class BestEvaluation {
 public:
  /// Adds the evaluation after `step` steps. Returns true if its loss is finite and lower than all
  /// before.
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
  /// Number of evaluations since the best one, or of all before the first.
  std::uint64_t since() const { return since_; }

 private:
  std::uint64_t step_ = 0, since_ = 0;
  double loss_ = std::numeric_limits<double>::infinity();
};

}  // namespace deltapipe
