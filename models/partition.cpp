// SPDX-License-Identifier: BSD-3-Clause
#include "models/partition.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "core/base/error.hpp"

namespace deltapipe {

std::vector<int> balanced_partition(int blocks, int stages, const ModelCost& cost) {
  if (stages > blocks)
    throw UserError(
        {.what = "there are more pipeline stages than blocks in the model",
         .value = std::to_string(stages) + " stages, " + std::to_string(blocks) + " blocks",
         .remedy = "set pipeline.stages to at most " + std::to_string(blocks),
         .keys = {"pipeline.stages"}});
  // The last stage gets `last` blocks and the head; the others share the rest evenly.
  std::vector<int> best;
  double best_load = 0;
  for (int last = 1; last <= blocks - (stages - 1); ++last) {
    if (stages == 1 && last < blocks) continue;
    const int others = stages - 1;
    const int rest = blocks - last;
    std::vector<int> partition;
    for (int i = 0; i < others; ++i) partition.push_back(rest / others + (i < rest % others));
    partition.push_back(last);
    const double first_load = others > 0 ? partition.front() * cost.block : 0;
    const double load = std::max(first_load, last * cost.block + cost.head);
    if (best.empty() || load < best_load) {
      best = partition;
      best_load = load;
    }
  }
  return best;
}

void check_partition(const std::vector<int>& partition, int blocks, int stages) {
  const int sum = std::accumulate(partition.begin(), partition.end(), 0);
  const bool positive =
      std::all_of(partition.begin(), partition.end(), [](int count) { return count > 0; });
  if (static_cast<int>(partition.size()) == stages && positive && sum == blocks) return;
  std::string text;
  for (const int count : partition) text += (text.empty() ? "" : ", ") + std::to_string(count);
  throw UserError({.what = "pipeline.partition does not fit the model",
                   .value = "[" + text + "]",
                   .remedy = "give " + std::to_string(stages) +
                             " positive numbers that add up to " + std::to_string(blocks) +
                             " blocks, or leave it out",
                   .keys = {"pipeline.partition", "pipeline.stages"}});
}

StagePart stage_part(const std::vector<int>& partition, int stage) {
  StagePart part;
  part.first_block = std::accumulate(partition.begin(), partition.begin() + stage, 0);
  part.blocks = partition[stage];
  part.first = stage == 0;
  part.last = stage + 1 == static_cast<int>(partition.size());
  return part;
}

}  // namespace deltapipe
