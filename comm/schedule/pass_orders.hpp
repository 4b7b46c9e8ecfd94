// SPDX-License-Identifier: BSD-3-Clause
// Orders of passes for the table of schedules().
#pragma once

#include <vector>

#include "comm/schedule/schedule.hpp"

namespace deltapipe {

/// Idle part of a step of GPipe and 1F1B, (K - 1) / (M + K - 1).
double ideal_bubble_fraction(const ScheduleShape& shape);

std::vector<Pass> gpipe_passes(const ScheduleShape& shape);
int gpipe_messages_ahead(const ScheduleShape& shape);

std::vector<Pass> one_forward_one_backward_passes(const ScheduleShape& shape);
int one_forward_one_backward_messages_ahead(const ScheduleShape& shape);

std::vector<Pass> zb_h1_passes(const ScheduleShape& shape);
/// Idle part I / (3 M + I), where I = 2 (K - 1) - min(K - 1, M - 1).
/// It equals (K - 1) / (3 M + K - 1) for M >= K.
double zb_h1_bubble_fraction(const ScheduleShape& shape);

std::vector<Pass> interleaved_passes(const ScheduleShape& shape);
int interleaved_messages_ahead(const ScheduleShape& shape);
/// Idle part with K ranks of V stages each. For M >= K it is (K - 1) / (V M + K - 1): V times less
/// waiting. With fewer micro-batches each of the V rounds takes as long as one of K micro-batches.
double interleaved_bubble_fraction(const ScheduleShape& shape);

}  // namespace deltapipe
