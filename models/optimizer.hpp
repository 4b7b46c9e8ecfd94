// SPDX-License-Identifier: BSD-3-Clause
// AdamW or SGD over a stage's parameters, with partial sums of the global gradient norm.
#pragma once

#include <cstdint>
#include <vector>

#include "core/stage/parameters.hpp"
#include "models/optimizer_settings.hpp"

namespace deltapipe {

struct AdamWStep;

/// Returns the learning rate of optimizer step `step` (counted from 0) of `steps`. It has a linear
/// warm-up and then constant, linear or cosine decay to the final fraction, as defined by
/// transformers' schedulers. settings.decay_steps replaces `steps` unless it is 0.
double learning_rate_at(const OptimizerSettings& settings, std::uint64_t step, std::uint64_t steps);

template <class Real>
class Optimizer {
 public:
  /// The parameters have settings.moments() moments.
  Optimizer(const OptimizerSettings& settings, ParameterArena<Real>& parameters);
  /// Returns the memory that an optimizer uses for these parameters in addition to their moments.
  static MemoryLedger memory(const std::vector<ParameterInfo>& parameters);

  /// Returns the sum of squares of every tensor's gradient, in the order of parameters.info(), 0
  /// for frozen tensors. Sums are per tensor so that the global norm does not depend on the
  /// partition. Waits for the kernels.
  const std::vector<double>& squared_norms(const ExecSpace& exec);
  /// Performs one update; `step` counts from 0. Multiplies gradients by gradient_factor.
  void update(const ExecSpace& exec, std::uint64_t step, double learning_rate,
              double gradient_factor);

  // Two halves of an update by AdamW in which replicas sum first moments in place of gradients. The
  // second moments stay those of the first `frozen_after` steps.

  /// Replaces the first moments by this replica's terms of their sum over replicas.
  void share_moments(const ExecSpace& exec, int replicas, double gradient_factor);
  /// Updates the parameters from the sums.
  void update_from_moments(const ExecSpace& exec, std::uint64_t step, std::uint64_t frozen_after,
                           double learning_rate);

  /// Returns the moments. The caller keeps the step count.
  std::vector<StatePart> state(const ExecSpace& exec) const {
    return {moment_state(exec, parameters_)};
  }

 private:
  static std::size_t partials(const ParameterInfo& parameter);
  double decay_of(int index) const;
  /// `step` counts from 0.
  AdamWStep step_at(std::uint64_t step, double learning_rate, double decay,
                    double gradient_factor) const;
  static Vector<double> partial_sums(std::size_t count, const ViewAllocator& memory);

  OptimizerSettings settings_;
  ParameterArena<Real>& parameters_;
  /// First partial sum of each tensor, and one past the last.
  std::vector<std::size_t> first_partial_;
  Vector<double> partial_;
  MirrorVector<double> partial_host_;
  std::vector<double> squared_norms_;
};

}  // namespace deltapipe
