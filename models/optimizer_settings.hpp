// SPDX-License-Identifier: BSD-3-Clause
// Settings of AdamW (arXiv 1711.05101) and its learning rate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltapipe {

enum class LearningRateSchedule { constant, linear, cosine };

struct OptimizerSettings {
  double learning_rate = 5e-5;
  LearningRateSchedule schedule = LearningRateSchedule::linear;
  std::uint64_t warmup_steps = 0;
  double final_learning_rate_fraction = 0;  ///< fraction of learning_rate at the last step
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  /// Applies to linear layers' matrices and wte, not to biases, norms and wpe.
  double weight_decay = 0.01;
  double clip_norm = 1.0;  ///< global gradient norm; 0: no clipping
  /// Patterns of parameters that are not trained (models/parameter_patterns.hpp).
  std::vector<std::string> frozen;

  bool operator==(const OptimizerSettings&) const = default;
};

}  // namespace deltapipe
