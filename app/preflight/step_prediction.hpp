// SPDX-License-Identifier: BSD-3-Clause
// The time of a training step before it runs: its instructions in the simulator, with the sizes of
// its messages and given rates.
#pragma once

#include <cstdint>

#include "app/preflight/step_programs.hpp"
#include "app/preflight/work_rates.hpp"
#include "app/session/session.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/schedule/simulation.hpp"
#include "core/data/dataset.hpp"

namespace deltapipe {

struct StepPrediction {
  double step_seconds = 0;
  /// Means over ranks. The bubble includes the wait for the slowest rank at the end of the step.
  RankSeconds parts;
};

/// `data` may be null: then all T tokens of a sample are valid.
MeanTokens mean_tokens(const PipelineShape& shape, const Dataset* data);

/// Messages of a step in the steady state, in which samples have memories. They do not depend on
/// the network.
class PlannedStep {
 public:
  /// Throws UserError as work_rates() does.
  PlannedStep(const Settings& settings, const ModelLayout& model, const PipelineShape& shape,
              const Dataset* data, const WorkRates& rates);

  StepPrediction predict(const NetworkSettings& network) const;
  /// Returns the bytes of a micro-batch's message at the boundary with the largest ones.
  std::uint64_t forward_bytes() const { return largest(forward_); }
  std::uint64_t backward_bytes() const { return largest(backward_); }
  /// Returns true if messages were counted with the most bytes that they may have, because their
  /// length depends on the values and no bits were given or measured.
  bool is_upper_bound() const { return is_upper_bound_; }
  /// Returns the most bytes that a rank sends to other replicas in a step or, with local steps, in
  /// an outer step.
  std::uint64_t replica_bytes() const;

 private:
  struct MessageCost {
    std::uint64_t bytes = 0;
    double codec_seconds = 0;  ///< of each of encoding and decoding
  };
  /// Bytes that a replica of a stage sends.
  struct Sum {
    std::uint64_t bytes = 0;  ///< of gradients that passes complete
    std::uint64_t embedding_bytes = 0, common_bytes = 0;
    int parts = 1;
    int pieces = 1;  ///< of `bytes`
    int rounds = 0;  ///< of messages that are under way together, for `bytes`
    int embedding_rounds = 0;
    int rounds_at_once = 0;  ///< of all bytes together

    std::uint64_t all() const { return bytes + embedding_bytes + common_bytes; }
  };
  static std::uint64_t largest(const std::vector<MessageCost>& messages);
  void plan_boundaries(const ModelLayout& model, const PipelineShape& shape, const MeanTokens& mean,
                       const WorkRates& rates);
  void plan_rows(const ModelLayout& model, const PipelineShape& shape, const Dataset* data,
                 const MeanTokens& mean);
  void plan_sums(const ModelLayout& model);
  void set_sums(const NetworkSettings& network, SimulationCosts& costs) const;
  double seconds_of_sums_at_once(const NetworkSettings& network) const;
  std::vector<std::uint64_t> replica_bytes_of_ranks() const;
  LinkCost link_cost(const NetworkSettings& network, int from, int to,
                     const MessageCost& message) const;

  Settings settings_;
  StepTraits traits_;
  std::vector<Program> programs_;
  std::vector<PassCost> passes_;  ///< by stage
  std::vector<MessageCost> forward_, backward_;
  MessageCost rows_, row_gradients_, common_gradient_, common_values_;
  std::vector<Sum> sums_;  ///< by stage
  double step_seconds_ = 0;
  bool is_upper_bound_ = false;
};

/// Returns the network with another bandwidth for all links; 0: without a limit.
NetworkSettings with_bandwidth(NetworkSettings network, double bits_per_second);

/// Returns the slowest bandwidth, in bit/s, at which a step takes at most `part` longer than over
/// links of any bandwidth and the same latency. Returns 0 if 1 kbit/s is enough.
double bandwidth_needed(const PlannedStep& step, const NetworkSettings& network,
                        double part = 0.05);

}  // namespace deltapipe
