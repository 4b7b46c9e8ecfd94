// SPDX-License-Identifier: BSD-3-Clause
// The emulated links that a rank of a pipeline sends over.
#pragma once

#include <map>
#include <memory>

#include "comm/transport/emulated_link.hpp"
#include "comm/transport/link_settings.hpp"

namespace deltapipe {

/// Layout of a pipeline's ranks and the links between them.
struct LinkedRanks {
  int ranks = 1;
  /// True if ranks have several stages, so that the first rank follows the last one.
  bool is_ring = false;
};

/// Returns the link from one rank to another: forward to the next one, backward to the previous
/// one. In a ring of more than two, the link from the last rank to the first is also forward.
/// Otherwise it carries only the rows of shared embeddings. From the last rank to the first it is
/// then as fast as the last rank's link backward, and from the first to the last as the first
/// rank's link forward. Two ranks have one link in each direction.
LinkSettings link_between(const NetworkSettings& network, int from, int to, const LinkedRanks& all);

/// Links of a rank. All messages to the same rank share one link.
class RankLinks {
 public:
  RankLinks(const NetworkSettings& network, int pipeline_rank, const LinkedRanks& all);
  /// Returns both directions of the rank's wire with WireSharing::rank, else an empty one.
  const RankWire& wire() const { return wire_; }
  /// Never returns null.
  std::shared_ptr<EmulatedLink> to(int pipeline_rank);
  /// Returns the link to other replicas. Never returns null.
  std::shared_ptr<EmulatedLink> to_replicas() const { return replicas_; }

 private:
  NetworkSettings network_;
  int rank_;
  LinkedRanks all_;
  RankWire wire_;
  std::shared_ptr<EmulatedLink> replicas_;
  std::map<int, std::shared_ptr<EmulatedLink>> links_;
};

}  // namespace deltapipe
