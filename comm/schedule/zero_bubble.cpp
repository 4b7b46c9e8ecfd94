// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdint>

#include "comm/schedule/pass_orders.hpp"

namespace deltapipe {

// 1F1B that sends gradients before it computes those of parameters. The latter fill the time in
// which a stage would wait at the end of the step. Later stages postpone them longer. All stages
// then hold as many micro-batches as the first stage of 1F1B.
std::vector<Pass> zb_h1_passes(const ScheduleShape& shape) {
  const std::int64_t put_off =
      std::int64_t{shape.in_flight} * (shape.stage - shape.first_trained_stage);
  const std::vector<Pass> whole = one_forward_one_backward_passes(shape);
  if (shape.recomputes) return whole;
  std::vector<Pass> passes;
  int next = 0;
  for (const Pass& pass : whole) {
    if (pass.kind == PassKind::forward) {
      passes.push_back(pass);
      continue;
    }
    passes.push_back({PassKind::backward_inputs, pass.micro_batch});
    if (pass.micro_batch >= put_off) passes.push_back({PassKind::backward_parameters, next++});
  }
  while (next < shape.micro_batches) passes.push_back({PassKind::backward_parameters, next++});
  return passes;
}

double zb_h1_bubble_fraction(const ScheduleShape& shape) {
  const int before = shape.stages - 1;
  const double idle = 2.0 * before - std::min(before, shape.micro_batches - 1);
  return idle / (3.0 * shape.micro_batches + idle);
}

}  // namespace deltapipe
