// SPDX-License-Identifier: BSD-3-Clause
// Assignment of a step's samples to replicas and micro-batches.
#pragma once

#include <cstdint>
#include <vector>

#include "core/data/dataset.hpp"
#include "core/data/sampler.hpp"

namespace deltapipe {

/// One replica's share of a step.
struct StepPlan {
  std::uint64_t step = 0;                                 ///< counted from 0 over all epochs
  double epoch = 0;                                       ///< epochs completed before this step
  std::vector<std::vector<std::uint64_t>> micro_batches;  ///< sample ids, in the order of passes
  std::uint64_t targets = 0;                              ///< sum over all replicas
  std::uint64_t samples = 0;                              ///< sum over all replicas
};

/// Distributes the samples of every step over replicas and micro-batches. With R replicas, replica
/// r visits the samples r, r + R, r + 2R ... in every epoch, in its own order, so that a sample's
/// activation memory stays in place. Without shuffling, a step's samples are those of one replica
/// with the same number of samples per step.
class StepPlanner {
 public:
  struct Layout {
    int micro_batch_size = 1;
    int micro_batches = 1;  ///< per step and replica
    int replicas = 1;
  };

  StepPlanner(const Dataset& data, std::uint64_t seed, bool shuffle, const Layout& layout);

  std::uint64_t steps_per_epoch() const { return steps_per_epoch_; }
  /// Returns how many of the samples a replica visits in an epoch.
  static std::uint64_t samples_of_replica(std::uint64_t samples, int replica, int replicas);
  StepPlan plan(std::uint64_t step, int replica) const;
  /// Returns only the samples, in the order in which the replica visits them.
  std::vector<std::uint64_t> samples(std::uint64_t step, int replica) const;

 private:
  std::uint64_t samples_per_step() const;  ///< samples of one replica

  const Dataset& data_;
  Layout layout_;
  std::vector<Sampler> samplers_;  ///< one per replica that has samples
  std::uint64_t steps_per_epoch_ = 0;
};

/// Returns the optimizer steps of a run: `steps` or, if that is 0, the steps of its epochs.
std::uint64_t total_steps(std::uint64_t steps, double epochs, std::uint64_t steps_per_epoch);

}  // namespace deltapipe
