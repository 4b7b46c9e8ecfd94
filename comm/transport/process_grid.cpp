// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/process_grid.hpp"

#include <fmt/format.h>

#include <string>

#include "comm/transport/mpi_check.hpp"
#include "core/base/error.hpp"

namespace deltapipe {
namespace {

void check_size(int size, int stages, int replicas, int stages_per_rank) {
  DELTAPIPE_ASSERT(
      stages > 0 && replicas > 0 && stages_per_rank > 0 && stages % stages_per_rank == 0,
      fmt::format("{} stages, {} replicas, {} stages a rank", stages, replicas, stages_per_rank));
  const long needed = static_cast<long>(stages) / stages_per_rank * replicas;
  if (needed == size) return;
  const std::string a_rank =
      stages_per_rank > 1 ? fmt::format(" / {} a rank", stages_per_rank) : "";
  throw UserError(Mistake{
      .what =
          fmt::format("the deck asks for {} stages{} x {} replicas = {} ranks, but {} {} started",
                      stages, a_rank, replicas, needed, size, size == 1 ? "was" : "were"),
      .remedy =
          fmt::format("start with mpirun -n {}, or change pipeline.stages{} or pipeline.replicas",
                      needed, stages_per_rank > 1 ? ", pipeline.stages_per_rank" : ""),
      .keys = {"pipeline.stages", "pipeline.replicas"}});
}

}  // namespace

ProcessGrid::ProcessGrid(MPI_Comm world, int stages, int replicas, int stages_per_rank)
    : stages_(stages), replicas_(replicas), stages_per_rank_(stages_per_rank) {
  int size = 0;
  DELTAPIPE_MPI(MPI_Comm_size(world, &size));
  DELTAPIPE_MPI(MPI_Comm_rank(world, &rank_));
  check_size(size, stages, replicas, stages_per_rank);
  DELTAPIPE_MPI(MPI_Comm_dup(world, &world_));
  DELTAPIPE_MPI(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN));
  DELTAPIPE_MPI(MPI_Comm_split(world_, replica(), pipeline_rank(), &pipeline_));
  DELTAPIPE_MPI(MPI_Comm_set_errhandler(pipeline_, MPI_ERRORS_RETURN));
  stage_comms_.assign(static_cast<std::size_t>(stages_per_rank), MPI_COMM_NULL);
  for (MPI_Comm& comm : stage_comms_) {
    DELTAPIPE_MPI(MPI_Comm_split(world_, pipeline_rank(), replica(), &comm));
    DELTAPIPE_MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  }
}

ProcessGrid::~ProcessGrid() {
  std::vector<MPI_Comm*> all = {&pipeline_, &world_};
  for (MPI_Comm& comm : stage_comms_) all.push_back(&comm);
  for (MPI_Comm* comm : all) {
    if (*comm != MPI_COMM_NULL) MPI_Comm_free(comm);
  }
}

std::string stages_text(int pipeline_rank, int stages, int stages_per_rank) {
  const int ranks = stages / stages_per_rank;
  std::string text = stages_per_rank == 1 ? "stage " : "stages ";
  for (int stage = pipeline_rank; stage < stages; stage += ranks)
    text += (stage == pipeline_rank ? "" : ", ") + std::to_string(stage);
  return text;
}

}  // namespace deltapipe
