// SPDX-License-Identifier: BSD-3-Clause
// The orders of passes that schedules() lists.
#pragma once

#include <vector>

#include "comm/pipeline/schedule.hpp"

namespace deltapipe {

std::vector<Pass> gpipe_passes(const ScheduleShape& shape);
int gpipe_messages_ahead(const ScheduleShape& shape);

std::vector<Pass> one_forward_one_backward_passes(const ScheduleShape& shape);
int one_forward_one_backward_messages_ahead(const ScheduleShape& shape);

}  // namespace deltapipe
