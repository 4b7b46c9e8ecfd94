// SPDX-License-Identifier: BSD-3-Clause
// Which ranks share a machine or a device, and what memory it has.
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

/// The machine of a single process. Kokkos has started.
RankMachine this_machine();
/// One entry per rank of `comm`. Collective; Kokkos has started.
std::vector<RankMachine> machines_of_ranks(MPI_Comm comm);

}  // namespace deltapipe
