// Sums gradients over the replicas of a stage while the backward pass still runs.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/channel.hpp"
#include "comm/progress_thread.hpp"
#include "core/views.hpp"

namespace deltapipe {

/// Memory for sums of so many elements under way at once: MPI's own copy of what it sums, and on
/// devices the pinned buffers.
std::uint64_t gradient_all_reduce_bytes(std::size_t elements, int replicas);

/// Uncompressed all-reduce. Every replica gets the same bits: MPI's nonblocking all-reduce forms
/// each sum in one place or in an order that does not depend on the rank.
class GradientAllReduce {
 public:
  /// `stage_comm` joins the replicas of a stage; with one replica all calls return at once.
  GradientAllReduce(ProgressThread& progress, MPI_Comm stage_comm);

  /// Starts summing a bucket in place; to be called once a step and bucket, in the same order on
  /// all replicas. On host backends MPI works on the View itself; on devices the values pass
  /// through a pinned buffer that is allocated at a bucket's first use. Kernels that write the
  /// bucket must have been queued on `space`, which is fenced.
  void start(const ExecSpace& space, int bucket, const Vector<float>& gradients);
  /// Waits for all started buckets; after it the Views hold the sums (not the means).
  void wait_all(const ExecSpace& space);

  /// bytes: values handed to MPI at this rank, not what its algorithm sends.
  ChannelStatistics take_statistics();

 private:
  struct Running {
    std::size_t bucket;
    Vector<float> gradients;
    HostVector<float> staged;
    std::vector<Ticket> tickets;
    /// When the ring has passed the emulated wires; one a ticket, written before that is done.
    std::vector<std::shared_ptr<TimePoint>> passed;
  };

  HostVector<float> stage(const ExecSpace& space, std::size_t bucket,
                          const Vector<float>& gradients);

  ProgressThread& progress_;
  MPI_Comm comm_;
  int replicas_ = 1;
  std::vector<HostVector<float>> staging_;  ///< by bucket; devices only
  std::vector<Running> running_;
  ChannelStatistics statistics_;
  IntervalSet transfers_;  ///< not yet in statistics_
};

}  // namespace deltapipe
