// SPDX-License-Identifier: BSD-3-Clause
// Which rank is which stage of which replica.
#pragma once

#include <mpi.h>

namespace deltapipe {

/// rank = replica * stages + stage. Owns its communicators; they return errors.
class ProcessGrid {
 public:
  /// Collective. Throws UserError on all ranks when `world` has not stages * replicas ranks.
  ProcessGrid(MPI_Comm world, int stages, int replicas);
  ~ProcessGrid();
  ProcessGrid(const ProcessGrid&) = delete;
  ProcessGrid& operator=(const ProcessGrid&) = delete;

  int rank() const { return rank_; }
  int stage() const { return rank_ % stages_; }
  int replica() const { return rank_ / stages_; }
  int stages() const { return stages_; }
  int replicas() const { return replicas_; }
  bool first() const { return stage() == 0; }
  bool last() const { return stage() == stages_ - 1; }
  int rank_of(int stage, int replica) const { return replica * stages_ + stage; }

  MPI_Comm world() const { return world_; }             ///< all ranks
  MPI_Comm pipeline_comm() const { return pipeline_; }  ///< one replica; rank = stage
  MPI_Comm stage_comm() const { return stage_comm_; }   ///< one stage; rank = replica

 private:
  int stages_;
  int replicas_;
  int rank_ = 0;
  MPI_Comm world_ = MPI_COMM_NULL;
  MPI_Comm pipeline_ = MPI_COMM_NULL;
  MPI_Comm stage_comm_ = MPI_COMM_NULL;
};

}  // namespace deltapipe
