// SPDX-License-Identifier: BSD-3-Clause
// Settings of AdamW (arXiv 1711.05101) or SGD, and of the learning rate.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace deltapipe {

/// adamw decouples weight decay; sgd has momentum and adds weight decay to the gradient.
enum class OptimizerName { adamw, sgd };
/// Names of OptimizerName, in its order.
inline constexpr std::array kOptimizerNames = {"adamw", "sgd"};

enum class LearningRateSchedule { constant, linear, cosine };

struct OptimizerSettings {
  OptimizerName name = OptimizerName::adamw;
  double learning_rate = 5e-5;
  LearningRateSchedule schedule = LearningRateSchedule::linear;
  std::uint64_t warmup_steps = 0;
  std::uint64_t decay_steps = 0;  ///< step at which linear and cosine decay ends; 0: the last step
  double final_learning_rate_fraction = 0;  ///< fraction of learning_rate at that step
  double momentum = 0.9;                    ///< of sgd
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  /// Applies to linear layers' matrices and wte, not to biases, norms and wpe ...
  double weight_decay = 0.01;
  bool decay_all = false;  ///< ... or to all parameters, as PyTorch's optimizers do
  double clip_norm = 1.0;  ///< global gradient norm; 0: no clipping
  /// Patterns of parameters that are not trained (models/parameter_patterns.hpp).
  std::vector<std::string> frozen;
  /// Trains DeBERTa's relative embeddings, except where `frozen` names them.
  bool relative_embeddings = false;

  /// Returns the moments that the optimizer keeps for each parameter.
  int moments() const { return name == OptimizerName::adamw ? 2 : 1; }
  bool operator==(const OptimizerSettings&) const = default;
};

}  // namespace deltapipe
