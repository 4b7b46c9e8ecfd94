// SPDX-License-Identifier: BSD-3-Clause
#include "comm/schedule/pass_orders.hpp"

namespace deltapipe {

std::vector<Pass> gpipe_passes(const ScheduleShape& shape) {
  std::vector<Pass> passes;
  for (const PassKind kind : {PassKind::forward, PassKind::backward})
    for (int m = 0; m < shape.micro_batches; ++m) passes.push_back({kind, m});
  return passes;
}

double ideal_bubble_fraction(const ScheduleShape& shape) {
  return (shape.stages - 1.0) / (shape.micro_batches + shape.stages - 1.0);
}

// Any number of buffers is correct; 1 + latency / transfer time of them keep a link busy.
int gpipe_messages_ahead(const ScheduleShape&) {
  return 15;
}

}  // namespace deltapipe
