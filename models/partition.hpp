// SPDX-License-Identifier: BSD-3-Clause
// How blocks are spread over stages.
#pragma once

#include <vector>

#include "models/gpt2_config.hpp"
#include "models/gpt2_stage.hpp"

namespace deltapipe {

/// Floating-point operations of one sample of T tokens, forward and backward.
struct ModelCost {
  double block = 0;  ///< one block
  double head = 0;   ///< final norm, output matrix and loss, on the last stage
};
ModelCost gpt2_cost(const Gpt2Config& config, int tokens);

/// Blocks a stage such that the most loaded stage has the least to do; among equals the earlier
/// stages hold more. Throws UserError when there are more stages than blocks.
std::vector<int> balanced_partition(int blocks, int stages, const ModelCost& cost);

/// Checks a partition that the user gave: one positive entry a stage, their sum the blocks.
void check_partition(const std::vector<int>& partition, int blocks, int stages);

StagePart stage_part(const std::vector<int>& partition, int stage);

}  // namespace deltapipe
