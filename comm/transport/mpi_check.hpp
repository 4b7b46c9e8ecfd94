// SPDX-License-Identifier: BSD-3-Clause
// Exceptions for MPI's return codes. The communicators in use must return errors: MpiSession sets
// this for MPI_COMM_WORLD, and duplicates and splits inherit it.
#pragma once

#include <mpi.h>

#include <string>

namespace deltapipe {

/// Returns MPI's own text for a return code.
std::string mpi_error_text(int code);

/// Throws InternalError for codes that only a bug explains (wrong arguments, truncation). Throws
/// UserError for the others (lost peers, no memory, network faults).
[[noreturn]] void throw_mpi_error(int code, const char* call, const char* file, int line);

}  // namespace deltapipe

/// Calls MPI and throws with MPI's text unless it returns MPI_SUCCESS.
#define DELTAPIPE_MPI(call)                                                        \
  do {                                                                             \
    const int deltapipe_mpi_code = (call);                                         \
    if (deltapipe_mpi_code != MPI_SUCCESS)                                         \
      ::deltapipe::throw_mpi_error(deltapipe_mpi_code, #call, __FILE__, __LINE__); \
  } while (false)
