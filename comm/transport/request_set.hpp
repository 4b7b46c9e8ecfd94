// SPDX-License-Identifier: BSD-3-Clause
// MPI's requests under way, with the operations that own them.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <vector>

#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// Used by the progress thread, with MPI locked.
class RequestSet {
 public:
  /// Takes over the requests of an operation, which count as outstanding, and clears the list.
  void adopt(const Ticket& operation, RequestList& requests);

  struct Finished {
    Ticket operation;
    MPI_Status status;
    int code = MPI_SUCCESS;
  };
  /// Removes the requests that are finished and returns them. Throws UserError if MPI itself is
  /// broken: the requests may never end.
  std::vector<Finished> take_finished();

  void cancel(const Ticket& operation);
  /// Forgets all requests. Buffers of requests that cannot be ended then outlive MPI.
  void abandon() noexcept;

  bool empty() const { return requests_.empty(); }
  std::size_t size() const { return requests_.size(); }
  /// Returns one operation per request.
  const std::vector<Ticket>& owners() const { return owners_; }

 private:
  std::vector<MPI_Request> requests_;
  std::vector<Ticket> owners_;
  std::vector<int> tested_indices_;
  std::vector<MPI_Status> tested_statuses_;
};

}  // namespace deltapipe
