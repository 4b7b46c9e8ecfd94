// SPDX-License-Identifier: BSD-3-Clause
// The sum over ranks of values that MPI finds in device memory. It is made of messages: nonblocking
// reductions of GPU-aware MPI libraries (Open MPI's) add on the host, which cannot read it there.
#pragma once

#include <mpi.h>

#include <cstddef>

#include "comm/transport/progress_thread.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// A sum in place: exchange(), add() once that is done at this rank, a fence, gather(). Each rank
/// adds up one part of the values, in the order of the ranks, so that all get the same bits; all
/// ranks together send as much as in a ring.
class DeviceSum {
 public:
  /// `values`: as many on all ranks; owns its memory or shares its ownership. Takes memory for the
  /// other ranks' values of this rank's part. Several sums over one communicator begin each phase
  /// in the same order on all ranks.
  DeviceSum(MPI_Comm comm, int rank, int ranks, Vector<float> values);

  /// Elements of the other ranks' values at most.
  static std::size_t received_elements(std::size_t elements, int ranks);

  /// Hands every part to the rank that adds it up; no kernel may be queued on the values.
  OperationPlan exchange() const;
  /// This rank's part; queued on exec.
  void add(const ExecSpace& exec) const;
  /// Hands the sum of this rank's part to all, and takes theirs.
  OperationPlan gather() const;

 private:
  MPI_Comm comm_;
  int rank_;
  int ranks_;
  Vector<float> values_;
  Vector<float> received_;  ///< [ranks - 1, elements of the part]
};

}  // namespace deltapipe
