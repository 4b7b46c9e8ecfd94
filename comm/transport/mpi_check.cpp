// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/mpi_check.hpp"

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace deltapipe {

std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
    return fmt::format("MPI error {}", code);
  }
  return std::string(text, static_cast<std::size_t>(length));
}

void throw_mpi_error(int code, const char* call, const char* file, int line) {
  int error_class = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &error_class);
  switch (error_class) {
    case MPI_ERR_BUFFER:
    case MPI_ERR_COUNT:
    case MPI_ERR_TYPE:
    case MPI_ERR_TAG:
    case MPI_ERR_COMM:
    case MPI_ERR_RANK:
    case MPI_ERR_ROOT:
    case MPI_ERR_GROUP:
    case MPI_ERR_OP:
    case MPI_ERR_REQUEST:
    case MPI_ERR_ARG:
    case MPI_ERR_TRUNCATE:
      throw_internal_error(call, file, line, mpi_error_text(code));
    default:
      throw UserError(Mistake{.what = "MPI failed: " + mpi_error_text(code),
                              .value = call,
                              .remedy = "check the network and that all ranks are still alive"});
  }
}

}  // namespace deltapipe
