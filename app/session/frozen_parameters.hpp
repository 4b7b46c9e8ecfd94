// SPDX-License-Identifier: BSD-3-Clause
// Applies training.optimizer.frozen to a model.
#pragma once

#include <string>
#include <vector>

#include "models/model.hpp"

namespace deltapipe {

/// Freezes the parameters that the patterns name. UserError for a pattern that names none, and when
/// nothing is left to train.
void freeze_parameters(const std::vector<std::string>& patterns, Model& model);

/// "124 M", or "85.1 M of 124 M trained" where some are frozen.
std::string parameters_text(const ParameterCount& count);

}  // namespace deltapipe
