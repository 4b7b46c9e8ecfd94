// SPDX-License-Identifier: BSD-3-Clause
// The settings to begin with where bytes are dear.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/codec/crossing.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe {

/// Activations: changes, first visits in steps of 0.5 RMS in tiles of 256 unless
/// first_visit_step_of() an error is held. Gradients: unbiased (stochastic) rounding, which needs
/// no error feedback. One step for a message, entropy coded, that follows recommended_error() from
/// rms_step on.
CodecSettings recommended_settings(Direction direction);

/// Relative RMS error of activations (docs/codecs.md).
inline constexpr double kRecommendedError = 0.02;
/// The error of a direction where activations have this one: gradients, rounded without bias, bear
/// more.
inline constexpr double recommended_error(Direction direction, double of_activations) {
  return direction == Direction::forward ? of_activations : 5 * of_activations;
}
/// The same within the range of target_error.
inline double recommended_target(Direction direction, double of_activations) {
  return std::min(0.99, recommended_error(direction, of_activations));
}

/// first_visit_step, in RMS, of a relative RMS error: rounding to the nearest step has a variance
/// of step^2 / 12.
inline double first_visit_step_of(double error) {
  return std::clamp(std::sqrt(12.0) * error, kLeastRmsStep, kLargestRmsStep);
}

}  // namespace deltapipe
