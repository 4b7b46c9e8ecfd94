// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/schedules/schedules.hpp"

namespace deltapipe {

std::vector<Pass> gpipe_passes(const ScheduleShape& shape) {
  std::vector<Pass> passes;
  for (const bool backward : {false, true})
    for (int m = 0; m < shape.micro_batches; ++m) passes.push_back({backward, m});
  return passes;
}

// Any number of buffers will do; a link is kept full by 1 + latency / transfer time.
int gpipe_messages_ahead(const ScheduleShape&) {
  return 15;
}

}  // namespace deltapipe
