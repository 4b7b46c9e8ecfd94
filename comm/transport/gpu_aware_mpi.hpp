// SPDX-License-Identifier: BSD-3-Clause
// Tests if MPI reads and writes the memory in which kernels work.
#pragma once

namespace deltapipe {

enum class GpuAwareness { yes, no, unknown };

/// Returns what MPI reports after its initialization; yes if kernels work in the host's memory.
GpuAwareness gpu_awareness_of_mpi();

/// Throws UserError if MPI reports that it is not GPU-aware. `unknown` passes: the run then tries
/// it.
void check_gpu_aware_mpi(GpuAwareness awareness);

}  // namespace deltapipe
