// SPDX-License-Identifier: BSD-3-Clause
// Assignment of stages and replicas to ranks.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

namespace deltapipe {

/// Grid of ranks with rank = replica * pipeline_ranks() + pipeline_rank(). A rank of a pipeline of
/// K ranks holds the stages pipeline_rank(), pipeline_rank() + K, pipeline_rank() + 2 K ...;
/// `local` counts them from 0. Owns its communicators; they return errors.
class ProcessGrid {
 public:
  /// Collective. `stages` is a multiple of stages_per_rank. Throws UserError on all ranks unless
  /// `world` has stages / stages_per_rank * replicas ranks.
  ProcessGrid(MPI_Comm world, int stages, int replicas, int stages_per_rank = 1);
  ~ProcessGrid();
  ProcessGrid(const ProcessGrid&) = delete;
  ProcessGrid& operator=(const ProcessGrid&) = delete;

  int rank() const { return rank_; }
  int stages() const { return stages_; }
  int stages_per_rank() const { return stages_per_rank_; }
  int stage(int local = 0) const { return pipeline_rank() + local * pipeline_ranks(); }
  int pipeline_rank() const { return rank_ % pipeline_ranks(); }
  int pipeline_ranks() const { return stages_ / stages_per_rank_; }
  int replica() const { return rank_ / pipeline_ranks(); }
  int replicas() const { return replicas_; }
  /// Return true if the first or last stage is on this rank.
  bool first() const { return pipeline_rank() == 0; }
  bool last() const { return pipeline_rank() + 1 == pipeline_ranks(); }
  /// Returns a rank of pipeline_comm().
  int owner_of(int stage) const { return stage % pipeline_ranks(); }
  int rank_of(int stage, int replica) const { return replica * pipeline_ranks() + owner_of(stage); }

  MPI_Comm world() const { return world_; }             ///< all ranks
  MPI_Comm pipeline_comm() const { return pipeline_; }  ///< one replica; rank = pipeline_rank()
  /// Returns the communicator of one stage; rank = replica.
  MPI_Comm stage_comm(int local = 0) const { return stage_comms_[static_cast<std::size_t>(local)]; }

 private:
  int stages_;
  int replicas_;
  int stages_per_rank_;
  int rank_ = 0;
  MPI_Comm world_ = MPI_COMM_NULL;
  MPI_Comm pipeline_ = MPI_COMM_NULL;
  std::vector<MPI_Comm> stage_comms_;
};

/// Returns "stage 1" or "stages 1, 3" for a rank of a pipeline.
std::string stages_text(int pipeline_rank, int stages, int stages_per_rank);

}  // namespace deltapipe
