// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdint>

#include "comm/schedule/pass_orders.hpp"

namespace deltapipe {

// Runs enough forward passes ahead to keep later stages busy. Then one backward pass follows each
// remaining forward pass, and the remaining backward passes come last.
std::vector<Pass> one_forward_one_backward_passes(const ScheduleShape& shape) {
  const int behind = shape.stages - 1 - shape.stage;
  const auto ahead = static_cast<int>(
      std::min<std::int64_t>(shape.micro_batches, std::int64_t{shape.in_flight} * behind));
  std::vector<Pass> passes;
  int forward = 0;
  while (forward < ahead) passes.push_back({PassKind::forward, forward++});
  for (int backward = 0; backward < shape.micro_batches; ++backward) {
    if (forward < shape.micro_batches) passes.push_back({PassKind::forward, forward++});
    passes.push_back({PassKind::backward, backward});
  }
  return passes;
}

// A stage runs this many forward passes ahead of the next stage, and as many backward passes behind
// it.
int one_forward_one_backward_messages_ahead(const ScheduleShape& shape) {
  return shape.in_flight;
}

}  // namespace deltapipe
