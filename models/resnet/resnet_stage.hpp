// SPDX-License-Identifier: BSD-3-Clause
// A stage of a residual network for classification, as a list of blocks.
#pragma once

#include <set>
#include <string>

#include "models/blocks/block_stage.hpp"
#include "models/partition.hpp"
#include "models/resnet/resnet_config.hpp"

namespace deltapipe {

/// Pixels and stem on the first stage, ResidualBlocks, and mean and classifier on the last one. A
/// boundary has a row for each pixel. The size of the images is known, and config.classes has at
/// least two names. Parameters have the names of transformers.
template <class Real>
class ResnetStage final : public BlockStage<Real> {
 public:
  ResnetStage(const ResnetConfig& config, const StagePart& part,
              const std::set<std::string>& frozen = {});
};

/// Returns the operations of an average block and of the head for an image.
ModelCost resnet_cost(const ResnetConfig& config);

}  // namespace deltapipe
