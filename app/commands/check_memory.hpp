// SPDX-License-Identifier: BSD-3-Clause
// Memory and disk space in the report of `check`.
#pragma once

#include <vector>

#include "app/deck/settings.hpp"
#include "app/preflight/memory_prediction.hpp"

namespace deltapipe {

/// Prints a column for each rank of a pipeline: replicas need the same, the first one no less than
/// the others.
void print_memory(const Settings& settings, const std::vector<RankMemory>& ranks);
/// Print what all ranks need of this machine and of its device. `ranks_are_here`: they run on it.
void print_machine(const std::vector<RankMemory>& ranks, bool ranks_are_here);
void print_device(const std::vector<RankMemory>& ranks, bool ranks_are_here);
void print_disk(const std::vector<DiskNeed>& needs);

}  // namespace deltapipe
