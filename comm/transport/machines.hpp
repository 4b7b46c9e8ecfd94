// SPDX-License-Identifier: BSD-3-Clause
// Ranks that share a machine or a device, and its memory.
#pragma once

#include <mpi.h>

#include <vector>

#include "core/base/observe/machine_memory.hpp"
#include "core/base/parallel/device_memory.hpp"

namespace deltapipe {

struct RankMachine {
  int machine = 0;  ///< the lowest rank on the same machine
  MachineMemory memory;
  DeviceMemory device;
};

/// Returns the entry of a process that is alone. Kokkos must have started.
RankMachine this_machine();
/// Returns one entry per rank of `comm`. Collective; Kokkos must have started.
std::vector<RankMachine> machines_of_ranks(MPI_Comm comm);

}  // namespace deltapipe
