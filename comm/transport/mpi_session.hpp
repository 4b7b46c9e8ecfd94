// SPDX-License-Identifier: BSD-3-Clause
// MPI's lifetime as an object.
#pragma once

namespace deltapipe {

/// Initializes MPI with MPI_THREAD_SERIALIZED (the compute thread and a ProgressThread take turns)
/// and makes MPI_COMM_WORLD return errors. Finalizes MPI on destruction, also when an exception
/// unwinds.
class MpiSession {
 public:
  /// Throws UserError when the MPI library does not support MPI_THREAD_SERIALIZED.
  MpiSession(int* argc, char*** argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// Ends all ranks at once; for a rank that cannot reach the others in another way.
  void abort(int exit_code) const noexcept;

  int rank() const { return rank_; }  ///< in MPI_COMM_WORLD
  int size() const { return size_; }  ///< size of MPI_COMM_WORLD

 private:
  int rank_ = 0;
  int size_ = 1;
};

/// Returns true between MPI's initialization and its finalization.
bool is_mpi_running();

}  // namespace deltapipe
