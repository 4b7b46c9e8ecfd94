// SPDX-License-Identifier: BSD-3-Clause
// Which samples a step visits, and where.
#pragma once

#include <cstdint>
#include <vector>

#include "core/data/dataset.hpp"
#include "core/data/sampler.hpp"

namespace deltapipe {

/// One replica's share of a step.
struct StepPlan {
  std::uint64_t step = 0;                                 ///< counted from 0 over all epochs
  double epoch = 0;                                       ///< epochs done before this step
  std::vector<std::vector<std::uint64_t>> micro_batches;  ///< sample ids, in the order of passes
  std::uint64_t predicted_tokens = 0;                     ///< of all replicas
  std::uint64_t samples = 0;                              ///< of all replicas
};

/// Spreads the samples of every step over replicas and micro-batches. Of R replicas, replica r
/// visits the samples r, r + R, r + 2R ... in every epoch, in an order of its own: a sample's
/// activation memory stays where it is. Without shuffling a step's samples are those that one
/// replica with as many samples a step visits.
class StepPlanner {
 public:
  struct Layout {
    int micro_batch_size = 1;
    int micro_batches = 1;  ///< per step and replica
    int replicas = 1;
  };

  StepPlanner(const TokenDataset& data, std::uint64_t seed, bool shuffle, const Layout& layout);

  std::uint64_t steps_per_epoch() const { return steps_per_epoch_; }
  /// How many of them a replica visits in an epoch.
  static std::uint64_t samples_of_replica(std::uint64_t samples, int replica, int replicas);
  StepPlan plan(std::uint64_t step, int replica) const;
  /// The samples alone, in the order in which the replica visits them.
  std::vector<std::uint64_t> samples(std::uint64_t step, int replica) const;

 private:
  std::uint64_t samples_per_step() const;  ///< of a replica

  const TokenDataset& data_;
  Layout layout_;
  std::vector<Sampler> samplers_;  ///< of the replicas that have samples
  std::uint64_t steps_per_epoch_ = 0;
};

/// Optimizer steps of a run: `steps` or, if these are 0, those of its epochs.
std::uint64_t total_steps(std::uint64_t steps, double epochs, std::uint64_t steps_per_epoch);

}  // namespace deltapipe
