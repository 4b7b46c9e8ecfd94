// SPDX-License-Identifier: BSD-3-Clause
// Sum over ranks of values in device memory that MPI accesses there. It consists of messages, since
// nonblocking reductions of GPU-aware MPI libraries (Open MPI's) add on the host, which cannot read
// device memory.
#pragma once

#include <mpi.h>

#include <cstddef>

#include "comm/transport/progress_thread.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// Most elements in one MPI call, which counts in int.
inline constexpr std::size_t kLargestPiece = std::size_t{1} << 28;

/// Sum in place: call exchange(), then add() after it has completed at this rank, then a fence,
/// then gather(). Each rank adds up one part of the values, in the order of the ranks, so that all
/// ranks get the same bits. All ranks together send as much as in a ring.
class DeviceSum {
 public:
  /// `values` has the same length on all ranks, and owns its memory or shares its ownership.
  /// Allocates memory for the other ranks' values of this rank's part. If several sums use one
  /// communicator, all ranks must begin each phase in the same order.
  DeviceSum(MPI_Comm comm, int rank, int ranks, Vector<float> values);

  /// Returns the largest number of elements received from other ranks.
  static std::size_t received_elements(std::size_t elements, int ranks);

  /// Sends every part to the rank that adds it up; no kernel may be queued on the values.
  OperationPlan exchange() const;
  /// Queues the sum of this rank's part on exec.
  void add(const ExecSpace& exec) const;
  /// Sends the sum of this rank's part to all ranks, and receives theirs.
  OperationPlan gather() const;

 private:
  MPI_Comm comm_;
  int rank_;
  int ranks_;
  Vector<float> values_;
  Vector<float> received_;  ///< [ranks - 1, elements of the part]
};

}  // namespace deltapipe
