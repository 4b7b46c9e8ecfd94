// SPDX-License-Identifier: BSD-3-Clause
// The emulated links of a pipeline, for predictions.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "comm/pipeline/settings.hpp"
#include "comm/transport/emulated_link.hpp"
#include "comm/transport/link_settings.hpp"

namespace deltapipe {

/// Links of the pipeline of one replica, with what passes them. The network must outlive it.
class PlannedLinks {
 public:
  PlannedLinks(const NetworkSettings& network, const PipelineSettings& pipeline)
      : network_(network),
        ranks_(pipeline.pipeline_ranks()),
        is_ring_(pipeline.stages_per_rank > 1) {}

  bool are_known() const {
    return !network_.forward.empty() || !network_.backward.empty() || !network_.ranks.empty();
  }
  /// Returns the seconds in which a message occupies the link or, with rank wires, each of two.
  double seconds_of(int from, int to, std::uint64_t bytes) const;
  double latency_of(int from, int to) const;
  /// The same for what a rank sends to other replicas.
  double sum_seconds_of(int rank, std::uint64_t bytes) const;
  double sum_latency_of(int rank) const;
  /// Counts a message of one rank to another; of a rank to itself, nothing.
  void pass(int from, int to, std::uint64_t bytes);
  /// Counts a part of a sum that a rank sends to other replicas, which send it as much.
  void pass_sum(int rank, std::uint64_t bytes);
  /// Returns the seconds in which messages pass, by the link's name.
  const std::map<std::string, double>& loads() const { return loads_; }

 private:
  LinkSettings between(int from, int to) const;
  const LinkSettings& wire_settings(int rank) const;
  EmulatedLink wire(int rank) const { return EmulatedLink(wire_settings(rank), Framing::ethernet); }

  const NetworkSettings& network_;
  int ranks_;
  bool is_ring_;
  std::map<std::string, double> loads_;
};

}  // namespace deltapipe
