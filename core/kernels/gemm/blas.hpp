// SPDX-License-Identifier: BSD-3-Clause
// Setup of the BLAS library for this process and processor.
#pragma once

#include <string>

namespace deltapipe {

/// Makes BLAS use one thread per process, as if a HostTeam shared products
/// (core/kernels/gemm/host_blas.hpp).
void use_single_threaded_blas();

/// Makes a HostTeam share the kernels among `threads` threads, or among Kokkos' threads if it has
/// several. Each of them uses a BLAS of one thread. Does nothing if kernels do not use a team.
/// Kokkos must have started.
void start_host_team(int threads);

/// Makes BLAS allocate its work buffers now, for `threads` concurrent callers and for its own
/// threads. OpenBLAS would allocate them at the first products, and retry forever if the address
/// space is too small (ulimit -v). This function throws UserError instead.
void reserve_blas_memory(int threads);

/// Returns the name, for OPENBLAS_CORETYPE, of kernels for this processor that are several times as
/// fast as those that OpenBLAS chose: on processors newer than itself it falls back to kernels of
/// 2004. Empty: there are no better ones, or the environment has made the choice.
std::string better_blas_kernels();

/// Restarts the program if better settings exist for libraries that read the environment when they
/// are loaded. Must be called before anything else. The settings are:
/// - OPENBLAS_CORETYPE, if there are better kernels.
/// - The time for which OpenMP's threads poll before they sleep, if kernels use them: about 50 us
///   instead of milliseconds, during which no other thread can use the core. The variables
///   OMP_WAIT_POLICY and GOMP_SPINCOUNT have precedence.
/// - No threads of OpenBLAS, which kernels do not need, if address space is limited.
void restart_with_better_settings(char** argv);

/// Returns "OpenBLAS SkylakeX", for outputs; "BLAS" for other libraries.
std::string blas_configuration();

}  // namespace deltapipe
