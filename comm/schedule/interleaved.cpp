// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdint>

#include "comm/schedule/pass_orders.hpp"

namespace deltapipe {
namespace {

/// Smallest number of micro-batches that pass a rank's stages one stage at a time. It is large
/// enough that the first one is back from all ranks when the rank starts its next stage.
std::int64_t least_group(const ScheduleShape& shape) {
  return std::int64_t{shape.in_flight} * shape.ranks();
}

/// Distributes remaining micro-batches over all groups: ranks would deadlock in a smaller group.
std::vector<MicroBatchGroup> groups_of(const ScheduleShape& shape) {
  const auto count =
      static_cast<int>(std::max<std::int64_t>(1, shape.micro_batches / least_group(shape)));
  std::vector<MicroBatchGroup> groups;
  const auto begin_of = [&](std::int64_t group) {
    return static_cast<int>(group * shape.micro_batches / count);
  };
  for (int g = 0; g < count; ++g) groups.push_back({begin_of(g), begin_of(g + 1)});
  return groups;
}

int largest_group(const ScheduleShape& shape) {
  int most = 0;
  for (const MicroBatchGroup& group : groups_of(shape))
    most = std::max(most, group.end - group.begin);
  return most;
}

/// Returns all passes of one kind. Each group passes one stage after the other; backward passes
/// begin at the last stage.
std::vector<Pass> passes_of(PassKind kind, const ScheduleShape& shape) {
  const int V = shape.stages_per_rank;
  std::vector<Pass> passes;
  for (const MicroBatchGroup& group : groups_of(shape))
    for (int v = 0; v < V; ++v)
      for (int m = group.begin; m < group.end; ++m)
        passes.push_back({kind, m, kind == PassKind::forward ? v : V - 1 - v});
  return passes;
}

}  // namespace

// 1F1B with each rank's share of the model split into several stages, so that a rank waits only for
// a smaller stage at the beginning and at the end. Forward and backward passes alternate after a
// group has passed all of the rank's stages but the last, plus two forward passes for each later
// rank.
std::vector<Pass> interleaved_passes(const ScheduleShape& shape) {
  if (shape.stages_per_rank == 1) return one_forward_one_backward_passes(shape);
  const std::vector<Pass> forward = passes_of(PassKind::forward, shape);
  const std::vector<Pass> backward = passes_of(PassKind::backward, shape);
  const std::int64_t behind = shape.ranks() - 1 - shape.rank();
  const std::int64_t to_last_stage = std::int64_t{shape.stages_per_rank - 1} * largest_group(shape);
  const auto ahead = static_cast<std::size_t>(std::min(
      static_cast<std::int64_t>(forward.size()), 2 * shape.in_flight * behind + to_last_stage));
  std::vector<Pass> passes(forward.begin(), forward.begin() + static_cast<std::ptrdiff_t>(ahead));
  std::size_t next = ahead;
  for (const Pass& pass : backward) {
    if (next < forward.size()) passes.push_back(forward[next++]);
    passes.push_back(pass);
  }
  return passes;
}

// A group waits at a boundary while the next rank works on another of its stages.
int interleaved_messages_ahead(const ScheduleShape& shape) {
  if (shape.stages_per_rank == 1) return one_forward_one_backward_messages_ahead(shape);
  return static_cast<int>(std::min<std::int64_t>(shape.micro_batches, 2 * least_group(shape) - 1));
}

double interleaved_bubble_fraction(const ScheduleShape& shape) {
  const int K = shape.ranks(), V = shape.stages_per_rank, M = shape.micro_batches;
  const double passes = V * static_cast<double>(M);
  return 1 - passes / (V * static_cast<double>(std::max(M, K)) + std::min(M, K) - 1);
}

}  // namespace deltapipe
