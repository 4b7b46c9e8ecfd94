// SPDX-License-Identifier: BSD-3-Clause
// Distribution of blocks over stages.
#pragma once

#include <vector>

namespace deltapipe {

/// Part of the model on a stage.
struct StagePart {
  int first_block = 0;
  int blocks = 1;
  bool first = true;  ///< holds the position table, and the token embedding unless that is tied
  bool last = true;   ///< holds the final norm and the output matrix
};

/// Floating-point operations of one sample, forward and backward.
struct ModelCost {
  double block = 0;  ///< one block
  double head = 0;   ///< final norm, output matrix and loss, on the last stage
  double stem = 0;   ///< layers that only the first stage has, except lookups in tables

  /// Returns the cost of a stage.
  double of(int blocks, bool first, bool last) const {
    return blocks * block + (first ? stem : 0) + (last ? head : 0);
  }
};

/// Returns the number of blocks per stage that minimizes the work of the most loaded stage. Among
/// equal partitions the earlier stages hold more blocks. Throws UserError when there are more
/// stages than blocks.
std::vector<int> balanced_partition(int blocks, int stages, const ModelCost& cost);

/// Checks a user's partition: one positive entry per stage, which add up to the blocks.
void check_partition(const std::vector<int>& partition, int blocks, int stages);

StagePart stage_part(const std::vector<int>& partition, int stage);

}  // namespace deltapipe
