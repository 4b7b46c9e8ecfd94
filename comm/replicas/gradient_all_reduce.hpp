// SPDX-License-Identifier: BSD-3-Clause
// Sums gradients over the replicas of a stage while the backward pass still runs.
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

/// Memory for sums of so many elements under way at once: MPI's own copy of what it sums, and on
/// devices the pinned buffers; of sums in device memory what other replicas send.
MemoryLedger gradient_all_reduce_memory(std::size_t elements, int replicas, PayloadMemory memory);

/// Uncompressed all-reduce. Every replica gets the same bits: MPI's nonblocking all-reduce forms
/// each sum in one place or in an order that does not depend on the rank, and so does DeviceSum,
/// with which MPI finds the gradients in device memory.
class GradientAllReduce {
 public:
  struct Bucket {
    int id = 0;
    Vector<float> gradients;  ///< owns its memory or shares its ownership
  };

  /// `stage_comm` joins the replicas of a stage; with one replica nothing is sent. `buckets`: all
  /// that a step sums, in the order in which every replica starts them. `memory`: the same at all.
  GradientAllReduce(ProgressThread& progress, MPI_Comm stage_comm, std::vector<Bucket> buckets,
                    PayloadMemory memory = PayloadMemory::host);

  /// Starts summing a bucket in place. InternalError when it is not the next one of the step. On
  /// host backends, and with PayloadMemory::device on all, MPI works on the View itself, which
  /// stays alive until MPI is done with it, also when the run stops before; else the values pass
  /// through a pinned buffer. Kernels that write the bucket must have been queued on `space`, which
  /// is fenced.
  void start(const ExecSpace& space, int bucket);
  /// Starts all buckets of a step: what a replica without samples does, its gradients being zero.
  void start_all(const ExecSpace& space);
  /// Waits for the buckets; what is queued on `space` after it finds the sums (not the means) in
  /// the Views. InternalError when one of them was not started in this step.
  void wait_all(const ExecSpace& space);

  /// bytes: values handed to MPI at this rank, not what its algorithm sends.
  ChannelStatistics take_statistics();

 private:
  struct Running {
    const Bucket& bucket;
    HostVector<float> staged;
    std::vector<Ticket> tickets;
    /// When the ring has passed the emulated wires; one per ticket, written before that is done.
    std::vector<std::shared_ptr<TimePoint>> passed;
    const DeviceSum* exchanged = nullptr;  ///< what is to be added up when tickets are done
  };

  bool in_device_memory() const { return memory_ == PayloadMemory::device; }
  bool is_staged() const;
  void start_all_reduce(Running& running, std::size_t place);
  void start_exchange(Running& running, std::size_t place);
  /// Adds up and hands on the parts of what is exchanged; waits for what is not, or leaves it.
  void hand_on_parts(const ExecSpace& space, bool waits);

  ProgressThread& progress_;
  MPI_Comm comm_;
  int replicas_ = 1;
  const PayloadMemory memory_;
  const std::vector<Bucket> buckets_;
  std::size_t started_ = 0;                 ///< buckets of the step at hand
  std::vector<HostVector<float>> staging_;  ///< as buckets_, if staged
  std::vector<DeviceSum> sums_;             ///< as buckets_, in device memory
  std::vector<Running> running_;
  ChannelStatistics statistics_;
  IntervalSet transfers_;  ///< not yet in statistics_
};

}  // namespace deltapipe
