// SPDX-License-Identifier: BSD-3-Clause
// How many of a machine's cores are a rank's.
#pragma once

#include <mpi.h>

#include <vector>

namespace deltapipe {

/// This process's share of the `cores` that it may use, by their numbers, if the cores that other
/// ranks of its machine may use as well are divided evenly; at least 1. No more than the
/// rank's part of a `quota` of cores for all ranks of the machine; 0: none. Collective over comm.
int share_of_cores(const std::vector<int>& cores, double quota);  ///< of a process that is alone
int share_of_cores(MPI_Comm comm, const std::vector<int>& cores, double quota);

}  // namespace deltapipe
