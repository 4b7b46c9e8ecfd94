// SPDX-License-Identifier: BSD-3-Clause
#include "models/partition.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "core/base/error.hpp"

namespace deltapipe {

std::vector<int> balanced_partition(int blocks, int stages, const ModelCost& cost) {
  if (stages > blocks)
    throw UserError({.what = "there are more pipeline stages than blocks in the model",
                     .value = fmt::format("{} stages, {} blocks", stages, blocks),
                     .remedy = fmt::format("set pipeline.stages to at most {}", blocks),
                     .keys = {"pipeline.stages"}});
  if (stages == 1) return {blocks};
  // The first and the last stage have work of their own; the others share the rest evenly.
  std::vector<int> best;
  double best_load = 0;
  const auto consider = [&](int first, int last) {
    const int others = stages - 2, rest = blocks - first - last;
    if (others == 0 ? rest != 0 : rest < others) return;
    std::vector<int> partition = {first};
    for (int i = 0; i < others; ++i) partition.push_back(rest / others + (i < rest % others));
    partition.push_back(last);
    double load = std::max(cost.of(first, true, false), cost.of(last, false, true));
    if (others > 0) load = std::max(load, cost.of(partition[1], false, false));
    if (!best.empty() && load >= best_load) return;
    best = partition;
    best_load = load;
  };
  for (int last = 1; last <= blocks - (stages - 1); ++last)
    for (int first = (blocks - last + stages - 2) / (stages - 1); first >= 1; --first)
      consider(first, last);
  return best;
}

void check_partition(const std::vector<int>& partition, int blocks, int stages) {
  const int sum = std::accumulate(partition.begin(), partition.end(), 0);
  const bool positive =
      std::all_of(partition.begin(), partition.end(), [](int count) { return count > 0; });
  if (static_cast<int>(partition.size()) == stages && positive && sum == blocks) return;
  std::string text;
  for (const int count : partition) text += (text.empty() ? "" : ", ") + std::to_string(count);
  throw UserError(
      {.what = "pipeline.partition does not fit the model",
       .value = "[" + text + "]",
       .remedy = fmt::format("give {} positive numbers that add up to {} blocks, or leave it out",
                             stages, blocks),
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
