// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/process_grid.hpp"

#include <string>

#include "comm/transport/mpi_check.hpp"
#include "core/base/error.hpp"

namespace deltapipe {
namespace {

void check_size(int size, int stages, int replicas) {
  DELTAPIPE_ASSERT(stages > 0 && replicas > 0,
                   std::to_string(stages) + " stages, " + std::to_string(replicas) + " replicas");
  const long needed = static_cast<long>(stages) * replicas;
  if (needed == size) return;
  throw UserError(Mistake{
      .what = "the deck asks for " + std::to_string(stages) + " stages x " +
              std::to_string(replicas) + " replicas = " + std::to_string(needed) + " ranks, but " +
              std::to_string(size) + (size == 1 ? " was" : " were") + " started",
      .remedy = "start with mpirun -n " + std::to_string(needed) +
                ", or change pipeline.stages or pipeline.replicas",
      .keys = {"pipeline.stages", "pipeline.replicas"}});
}

}  // namespace

ProcessGrid::ProcessGrid(MPI_Comm world, int stages, int replicas)
    : stages_(stages), replicas_(replicas) {
  int size = 0;
  DELTAPIPE_MPI(MPI_Comm_size(world, &size));
  DELTAPIPE_MPI(MPI_Comm_rank(world, &rank_));
  check_size(size, stages, replicas);
  DELTAPIPE_MPI(MPI_Comm_dup(world, &world_));
  DELTAPIPE_MPI(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN));
  DELTAPIPE_MPI(MPI_Comm_split(world_, replica(), stage(), &pipeline_));
  DELTAPIPE_MPI(MPI_Comm_split(world_, stage(), replica(), &stage_comm_));
  DELTAPIPE_MPI(MPI_Comm_set_errhandler(pipeline_, MPI_ERRORS_RETURN));
  DELTAPIPE_MPI(MPI_Comm_set_errhandler(stage_comm_, MPI_ERRORS_RETURN));
}

ProcessGrid::~ProcessGrid() {
  for (MPI_Comm* comm : {&stage_comm_, &pipeline_, &world_}) {
    if (*comm != MPI_COMM_NULL) MPI_Comm_free(comm);
  }
}

}  // namespace deltapipe
