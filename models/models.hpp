// SPDX-License-Identifier: BSD-3-Clause
// Models and the optimizer: all headers for users of deltapipe::models.
// Headers that are not listed here are details: they are not installed, and may change.
#pragma once

// IWYU pragma: begin_exports
#include "models/model.hpp"
#include "models/optimizer.hpp"
#include "models/optimizer_settings.hpp"
#include "models/outer_optimizer.hpp"
#include "models/parameter_patterns.hpp"
#include "models/partition.hpp"
// IWYU pragma: end_exports
