// SPDX-License-Identifier: BSD-3-Clause
// The orders of passes that schedules() lists.
#pragma once

#include <vector>

#include "comm/schedule/schedule.hpp"

namespace deltapipe {

/// (K - 1) / (M + K - 1), of GPipe and 1F1B.
double ideal_bubble_fraction(const ScheduleShape& shape);

std::vector<Pass> gpipe_passes(const ScheduleShape& shape);
int gpipe_messages_ahead(const ScheduleShape& shape);

std::vector<Pass> one_forward_one_backward_passes(const ScheduleShape& shape);
int one_forward_one_backward_messages_ahead(const ScheduleShape& shape);

std::vector<Pass> zb_h1_passes(const ScheduleShape& shape);
/// With I = 2 (K - 1) - min(K - 1, M - 1) idle passes, the share I / (3 M + I) waits: (K - 1) / (3
/// M + K - 1) for M >= K.
double zb_h1_bubble_fraction(const ScheduleShape& shape);

std::vector<Pass> interleaved_passes(const ScheduleShape& shape);
int interleaved_messages_ahead(const ScheduleShape& shape);
/// With K ranks of V stages each, (K - 1) / (V M + K - 1) for M >= K: V times less waiting. With
/// fewer micro-batches each of the V rounds takes as long as K.
double interleaved_bubble_fraction(const ScheduleShape& shape);

}  // namespace deltapipe
