// SPDX-License-Identifier: BSD-3-Clause
// The emulated links that a rank of a pipeline sends over.
#pragma once

#include <map>
#include <memory>

#include "comm/transport/emulated_link.hpp"
#include "comm/transport/link_settings.hpp"

namespace deltapipe {

/// The ranks of a pipeline as links join them.
struct LinkedRanks {
  int ranks = 1;
  /// Ranks have several stages, so that the last one comes before the first one again.
  bool is_ring = false;
};

/// The link from one rank to another: forward to the next one, backward to the one before. In a
/// ring of more than two the last rank's to the first is forward, too; else it carries the rows of
/// shared embeddings alone and is as fast as the last rank's link backward, as the first one's to
/// the last is as its link forward. Two ranks have one link in each direction.
LinkSettings link_between(const NetworkSettings& network, int from, int to, const LinkedRanks& all);

/// All that a rank sends to another passes one link.
class RankLinks {
 public:
  RankLinks(const NetworkSettings& network, int pipeline_rank, const LinkedRanks& all);
  /// With WireSharing::rank the rank's wire, both directions; else none.
  const RankWire& wire() const { return wire_; }
  /// Never null.
  std::shared_ptr<EmulatedLink> to(int pipeline_rank);

 private:
  NetworkSettings network_;
  int rank_;
  LinkedRanks all_;
  RankWire wire_;
  std::map<int, std::shared_ptr<EmulatedLink>> links_;
};

}  // namespace deltapipe
