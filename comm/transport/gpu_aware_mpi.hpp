// SPDX-License-Identifier: BSD-3-Clause
// Whether MPI reads and writes the memory that kernels work in.
#pragma once

namespace deltapipe {

enum class GpuAwareness { yes, no, unknown };

/// Answer of MPI itself after its initialisation; yes where kernels work in host memory.
GpuAwareness gpu_awareness_of_mpi();

/// UserError where MPI says no; what it does not say is tried.
void check_gpu_aware_mpi(GpuAwareness awareness);

}  // namespace deltapipe
