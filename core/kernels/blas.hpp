// SPDX-License-Identifier: BSD-3-Clause
// How the BLAS library is set up for this process and processor.
#pragma once

#include <string>

namespace deltapipe {

/// Lets BLAS use one thread a process, as where a HostTeam shares products
/// (core/kernels/host_blas.hpp).
void use_single_threaded_blas();

/// Lets BLAS take its work buffers now, for so many threads that multiply at a time and for its
/// own. OpenBLAS takes them when products come, and asks again for ever where the address space is
/// too small (ulimit -v); this throws UserError instead.
void reserve_blas_memory(int threads);

/// OpenBLAS knows the processors of its time, and falls back to kernels of 2004 on later ones.
/// Name, as OPENBLAS_CORETYPE takes it, of kernels for this processor that are several times as
/// fast as those that it chose; empty: there are none, or the environment has made the choice.
std::string better_blas_kernels();

/// Runs the program again with OPENBLAS_CORETYPE set if there are better kernels; to be called
/// before anything else, since OpenBLAS chooses when it is loaded.
void restart_with_better_blas_kernels(char** argv);

/// "OpenBLAS SkylakeX", for outputs; "BLAS" for other libraries. Where larger products of fp32 are
/// oneDNN's: "OpenBLAS Cooperlake, sgemm of oneDNN 2.6.3".
std::string blas_configuration();

}  // namespace deltapipe
