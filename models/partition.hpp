// SPDX-License-Identifier: BSD-3-Clause
// How blocks are spread over stages.
#pragma once

#include <vector>

namespace deltapipe {

/// Which part of the model a stage is.
struct StagePart {
  int first_block = 0;
  int blocks = 1;
  bool first = true;  ///< holds the position table, and the token embedding if that is not tied
  bool last = true;   ///< holds the final norm and the output matrix
};

/// Floating-point operations of one sample, forward and backward.
struct ModelCost {
  double block = 0;  ///< one block
  double head = 0;   ///< final norm, output matrix and loss, on the last stage
};

/// Blocks a stage such that the most loaded stage has the least to do; among equals the earlier
/// stages hold more. Throws UserError when there are more stages than blocks.
std::vector<int> balanced_partition(int blocks, int stages, const ModelCost& cost);

/// Checks a partition that the user gave: one positive entry per stage, their sum the blocks.
void check_partition(const std::vector<int>& partition, int blocks, int stages);

StagePart stage_part(const std::vector<int>& partition, int stage);

}  // namespace deltapipe
