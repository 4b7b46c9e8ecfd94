// SPDX-License-Identifier: BSD-3-Clause
// How the BLAS library is set up for this process and processor.
#pragma once

#include <string>

namespace deltapipe {

/// Lets BLAS and oneDNN use one thread a process.
void use_single_threaded_blas();

/// For backends that do not thread themselves: as many threads as OPENBLAS_NUM_THREADS or, without
/// it, OMP_NUM_THREADS says, else one, so that ranks that share a machine do not share cores.
void use_chosen_blas_threads();

/// Lets BLAS take its work buffers now. OpenBLAS takes them in its first product and asks again for
/// ever where the address space is too small (ulimit -v); this throws UserError instead.
void reserve_blas_memory();

/// OpenBLAS knows the processors of its time, and falls back to kernels of 2004 on later ones.
/// Name, as OPENBLAS_CORETYPE takes it, of kernels for this processor that are several times as
/// fast as those that it chose; empty: there are none, or the environment has made the choice.
std::string better_blas_kernels();

/// Runs the program again with OPENBLAS_CORETYPE set if there are better kernels; to be called
/// before anything else, since OpenBLAS chooses when it is loaded.
void restart_with_better_blas_kernels(char** argv);

/// "OpenBLAS SkylakeX", for outputs; "BLAS" for other libraries.
std::string blas_configuration();

}  // namespace deltapipe
