// SPDX-License-Identifier: BSD-3-Clause
// Settings to begin with if bytes are expensive.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/codec/crossing.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe {

/// Activations: changes, and first visits in tiles of 256 with steps of 0.5 RMS, or of
/// first_visit_step_of() the error that is held. Gradients: unbiased (stochastic) rounding, which
/// needs no error feedback. Each message has one step and is entropy coded; steps begin at rms_step
/// and then follow recommended_error().
CodecSettings recommended_settings(Direction direction);

/// Relative RMS error of activations (docs/codecs.md).
inline constexpr double kRecommendedError = 0.02;
/// Returns the error of a direction if activations have this one. Gradients are rounded without
/// bias and tolerate more.
inline constexpr double recommended_error(Direction direction, double of_activations) {
  return direction == Direction::forward ? of_activations : 5 * of_activations;
}
/// Returns the same, limited to the range of target_error.
inline double recommended_target(Direction direction, double of_activations) {
  return std::min(0.99, recommended_error(direction, of_activations));
}

/// Returns the first_visit_step, in RMS, for a relative RMS error: rounding to the nearest step has
/// a variance of step^2 / 12.
inline double first_visit_step_of(double error) {
  return std::clamp(std::sqrt(12.0) * error, kLeastRmsStep, kLargestRmsStep);
}

}  // namespace deltapipe
