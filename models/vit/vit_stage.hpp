// SPDX-License-Identifier: BSD-3-Clause
// A stage of a vision transformer for classification, as a list of blocks.
#pragma once

#include "models/blocks/block_stage.hpp"
#include "models/vit/vit_config.hpp"

namespace deltapipe {

/// Patches on the first stage, TransformerBlocks, and final norm and classifier on the last one.
/// config.classes has at least two names. Parameters have the names of transformers, except that
/// query, key and value are one matrix [3C, C], `qkv`.
template <class Real>
StageParts<Real> parts_of(const VitConfig& config, const StagePart& part,
                          ParameterArena<Real>& parameters);
template <class Real>
using VitStage = ModelStage<Real, VitConfig>;

/// Returns the operations of one block and of the head for an image.
ModelCost vit_cost(const VitConfig& config);

}  // namespace deltapipe
