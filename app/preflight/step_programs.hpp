// SPDX-License-Identifier: BSD-3-Clause
// The instructions of a training step, for predictions.
#pragma once

#include <vector>

#include "app/deck/settings.hpp"
#include "app/session/session.hpp"
#include "comm/schedule/schedule.hpp"

namespace deltapipe {

/// Returns the shape of a full step at a stage, without properties of the model.
ScheduleShape step_shape(const Settings& settings, int stage);

/// Properties of the model that change a step's instructions.
struct StepTraits {
  int first_trained_stage = 0;
  bool trains_common = false;  ///< gradients of common parameters are summed over stages
  EmbeddingPlace embedding = EmbeddingPlace::none;
  bool embedding_frozen = false;
};

StepTraits step_traits(const ModelLayout& model);

/// Returns the program of each rank of a pipeline, for a full step.
std::vector<Program> step_programs(const Settings& settings, const StepTraits& traits);

}  // namespace deltapipe
