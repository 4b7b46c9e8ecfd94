// SPDX-License-Identifier: BSD-3-Clause
// Reads the state of a rank from a checkpoint, also from one of another layout.
#pragma once

#include <string>
#include <vector>

#include "app/checkpoint/checkpoint_files.hpp"
#include "app/checkpoint/restart.hpp"
#include "app/deck/settings.hpp"
#include "app/training/run_totals.hpp"
#include "core/base/state/state.hpp"

namespace deltapipe {

/// Reads the parameters of a whole model from the files of all ranks.
void read_parameters(const std::string& checkpoint, const CheckpointMarker& marker,
                     const StatePart& parameters);

/// Reads this rank's state. On another layout parameters and moments come by their names from
/// whoever wrote them, memories from the ends of the same boundary if it still exists: the others
/// begin with first visits. Returns the number of this rank's ends that begin so.
int read_restart(const Restart& restart, const Settings& settings,
                 const std::vector<int>& partition, int rank, std::vector<StatePart> parts,
                 RunTotals& totals);

}  // namespace deltapipe
