// SPDX-License-Identifier: BSD-3-Clause
// How the BLAS library is set up for this process and processor.
#pragma once

#include <string>

namespace deltapipe {

/// Lets BLAS use one thread a process, as where a HostTeam shares products
/// (core/kernels/gemm/host_blas.hpp).
void use_single_threaded_blas();

/// Lets a HostTeam share the kernels among so many threads, or among Kokkos' where it has some,
/// each of them with a BLAS of one thread; nothing where kernels have no team. Kokkos must have
/// started.
void start_host_team(int threads);

/// Lets BLAS take its work buffers now, for so many threads that multiply at a time and for its
/// own. OpenBLAS takes them when products come, and asks again for ever where the address space is
/// too small (ulimit -v); this throws UserError instead.
void reserve_blas_memory(int threads);

/// OpenBLAS knows the processors of its time, and falls back to kernels of 2004 on later ones.
/// Name, as OPENBLAS_CORETYPE takes it, of kernels for this processor that are several times as
/// fast as those that it chose; empty: none exist, or the environment has made the choice.
std::string better_blas_kernels();

/// Runs the program again if what libraries read of the environment when they are loaded can be
/// better: OPENBLAS_CORETYPE where there are better kernels; where kernels have OpenMP's threads,
/// that these look for work for some 50 us before they sleep, in place of milliseconds, which the
/// next thread on their core waits for (unless OMP_WAIT_POLICY or GOMP_SPINCOUNT say what they do);
/// no threads of OpenBLAS' own, which kernels do without, where address space is limited.
/// To be called before anything else.
void restart_with_better_settings(char** argv);

/// "OpenBLAS SkylakeX", for outputs; "BLAS" for other libraries.
std::string blas_configuration();

}  // namespace deltapipe
