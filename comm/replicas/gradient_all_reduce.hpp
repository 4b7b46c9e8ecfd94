// SPDX-License-Identifier: BSD-3-Clause
// Sum of gradients over the replicas of a stage while the backward pass still runs.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/replicas/device_sum.hpp"
#include "comm/transport/channel.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// Returns the memory for concurrent sums of this many elements: MPI's own copy of the values and,
/// on devices, the pinned buffers. Sums in device memory instead count the values that other
/// replicas send.
MemoryLedger gradient_all_reduce_memory(std::size_t elements, int replicas, PayloadMemory memory);

/// Uncompressed all-reduce. Every replica gets the same bits. MPI's nonblocking all-reduce forms
/// each sum in one place or in an order that does not depend on the rank. So does DeviceSum, which
/// is used if MPI accesses the gradients in device memory.
class GradientAllReduce {
 public:
  struct Bucket {
    int id = 0;
    Vector<float> gradients;  ///< owns its memory or shares its ownership
  };

  /// `stage_comm` joins the replicas of a stage; with one replica nothing is sent. `buckets` lists
  /// all sums of a step in the order in which every replica starts them. `memory` is the same at
  /// all replicas.
  GradientAllReduce(ProgressThread& progress, MPI_Comm stage_comm, std::vector<Bucket> buckets,
                    PayloadMemory memory = PayloadMemory::host);

  /// Starts the sum of a bucket in place. Throws InternalError if it is not the next one of the
  /// step. On host backends, and everywhere with PayloadMemory::device, MPI works on the View
  /// itself. The View stays alive until MPI is done with it, even if the run stops earlier. In
  /// other cases the values pass through a pinned buffer. Kernels that write the bucket must have
  /// been queued on `space`, which is fenced.
  void start(const ExecSpace& space, int bucket);
  /// Starts all buckets of a step, on a replica without samples, whose gradients are zero.
  void start_all(const ExecSpace& space);
  /// Waits for the buckets. Work that is queued on `space` afterwards finds the sums (not the
  /// means) in the Views. Throws InternalError if a bucket was not started in this step.
  void wait_all(const ExecSpace& space);

  /// Returns statistics; their bytes are values passed to MPI at this rank, not what its algorithm
  /// sends.
  ChannelStatistics take_statistics();

 private:
  struct Running {
    const Bucket& bucket;
    HostVector<float> staged;
    std::vector<Ticket> tickets;
    /// Times at which the ring has passed the emulated wires. There is one per ticket, written
    /// before the ticket is done.
    std::vector<std::shared_ptr<TimePoint>> passed;
    const DeviceSum* exchanged = nullptr;  ///< sum to add up after the tickets are done
  };

  bool in_device_memory() const { return memory_ == PayloadMemory::device; }
  bool is_staged() const;
  void start_all_reduce(Running& running, std::size_t place);
  void start_exchange(Running& running, std::size_t place);
  /// Adds up and sends on the parts of completed exchanges. For the others it waits, or skips them.
  void hand_on_parts(const ExecSpace& space, bool waits);

  ProgressThread& progress_;
  MPI_Comm comm_;
  int replicas_ = 1;
  const PayloadMemory memory_;
  const std::vector<Bucket> buckets_;
  std::size_t started_ = 0;                 ///< buckets of the current step
  std::vector<HostVector<float>> staging_;  ///< same order as buckets_, if staged
  std::vector<DeviceSum> sums_;             ///< same order as buckets_, in device memory
  std::vector<Running> running_;
  ChannelStatistics statistics_;
  IntervalSet transfers_;  ///< not yet in statistics_
};

}  // namespace deltapipe
