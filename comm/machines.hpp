// Which ranks share a machine, and what memory it has.
#pragma once

#include <mpi.h>

#include <vector>

#include "core/machine_memory.hpp"

namespace deltapipe {

struct RankMachine {
  int machine = 0;  ///< the lowest rank on the same machine
  MachineMemory memory;
};

/// One entry a rank of `comm`. Collective.
std::vector<RankMachine> machines_of_ranks(MPI_Comm comm);

}  // namespace deltapipe
