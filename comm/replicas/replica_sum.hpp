// SPDX-License-Identifier: BSD-3-Clause
// Sum of gradients over the replicas of a stage while the backward pass still runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/parallel/views.hpp"
#include "core/base/state/state.hpp"

namespace deltapipe {

class ProgressThread;

/// Values that replicas sum together. They become final at the same time.
struct SumBucket {
  int id = 0;
  Vector<float> values;  ///< memory that outlives the sum
};

struct SumStatistics {
  std::uint64_t bytes = 0;  ///< including headers
  /// Squared errors of what the codec sent, and squares of its values, error feedback included;
  /// 0: not measured.
  double error2 = 0, signal2 = 0;
};

/// All replicas of a stage call the same functions in the same order. Only poll() may differ. Every
/// replica ends with the same bits.
class ReplicaSum {
 public:
  virtual ~ReplicaSum() = default;

  /// Begins a step. `epoch` decides on warm-up, the same on all replicas. `measures`: statistics
  /// have errors.
  virtual void begin(double epoch, bool measures) = 0;
  /// Starts the sum of a bucket in place. Throws InternalError if it is not the next one of the
  /// step. Kernels that write the bucket must have been queued on `exec`, which is fenced.
  virtual void start(const ExecSpace& exec, int bucket) = 0;
  /// Starts all buckets of a step, on a replica without samples, whose gradients are zero.
  virtual void start_all(const ExecSpace& exec) = 0;
  /// Continues started sums as far as that is possible without waiting.
  virtual void poll(const ExecSpace& exec) = 0;
  /// Returns the name of a message that the started sums wait for; empty: they can continue, or are
  /// complete.
  virtual std::string missing_message() const = 0;
  virtual bool is_complete() const = 0;
  /// Completes the sums of a step. Work that is queued on `exec` afterwards finds them (sums, not
  /// means) in the buckets. Throws InternalError if a bucket was not started in this step.
  virtual void finish(const ExecSpace& exec) = 0;

  /// Returns what the sum retains from step to step, one part at most.
  virtual std::vector<StatePart> state(const ExecSpace& exec) = 0;
  /// Forgets what it retains, when a step does not count. All replicas call it together.
  virtual void reset(const ExecSpace& exec) = 0;
  /// Returns what this rank sent since the last call, and the errors of the last sum if there was
  /// one since then. Waits for exec.
  virtual SumStatistics take_statistics(const ExecSpace& exec) = 0;
};

/// Waits until all started sums are complete. They continue together, whichever message comes
/// first: a wait for one of them would delay the others by a link's latency. Messages about the
/// wait name the first sum that lacks a message.
void complete(std::span<ReplicaSum* const> sums, const ExecSpace& exec, ProgressThread& progress);

}  // namespace deltapipe
