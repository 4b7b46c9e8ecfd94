// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/mpi_session.hpp"

#include <mpi.h>

#include "comm/transport/mpi_check.hpp"
#include "comm/transport/start_watch.hpp"
#include "core/base/error.hpp"
#include "core/base/parallel/helper_thread.hpp"

namespace deltapipe {

MpiSession::MpiSession(int* argc, char*** argv) {
  int provided = MPI_THREAD_SINGLE;
  {
    const UnboundThread unbound;  // keeps MPI's threads off the compute threads' cores
    DELTAPIPE_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided));
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    // All ranks have the same library, so all leave here.
    MPI_Finalize();
    throw UserError(Mistake{.what = "the MPI library does not support MPI_THREAD_SERIALIZED",
                            .remedy = "use an MPI built with thread support"});
  }
  DELTAPIPE_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  DELTAPIPE_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  DELTAPIPE_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size_));
}

MpiSession::~MpiSession() {
  if (size_ > 1) watch_end(rank_, kEndSeconds);
  MPI_Finalize();
}

void MpiSession::abort(int exit_code) const noexcept {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
}

bool is_mpi_running() {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

}  // namespace deltapipe
