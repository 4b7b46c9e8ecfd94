// SPDX-License-Identifier: BSD-3-Clause
// Share of a rank in its machine's cores.
#pragma once

#include <mpi.h>

#include <vector>

namespace deltapipe {

/// Returns the number of cores of a rank, at least 1. `cores` are the numbers of the cores that the
/// calling process may use. Those that other ranks of its machine may also use are divided evenly.
/// The result does not exceed the rank's part of a `quota` of cores for all ranks of the machine;
/// 0: no quota. Collective over comm.
int share_of_cores(const std::vector<int>& cores, double quota);  ///< for a process that is alone
int share_of_cores(MPI_Comm comm, const std::vector<int>& cores, double quota);

}  // namespace deltapipe
