// SPDX-License-Identifier: BSD-3-Clause
// A stage of a residual network for classification, as a list of blocks.
#pragma once

#include "models/blocks/block_stage.hpp"
#include "models/resnet/resnet_config.hpp"

namespace deltapipe {

/// Pixels and stem on the first stage, ResidualBlocks, and mean and classifier on the last one. A
/// boundary has a row for each pixel. The size of the images is known, and config.classes has at
/// least two names. Parameters have the names of transformers.
template <class Real>
StageParts<Real> parts_of(const ResnetConfig& config, const StagePart& part,
                          ParameterArena<Real>& parameters);
template <class Real>
using ResnetStage = ModelStage<Real, ResnetConfig>;

/// Returns the operations of an average block and of the head for an image.
ModelCost resnet_cost(const ResnetConfig& config);

}  // namespace deltapipe
