// SPDX-License-Identifier: BSD-3-Clause
// The emulated links that a rank of a pipeline sends over.
#pragma once

#include <map>
#include <memory>

#include "comm/transport/emulated_link.hpp"
#include "comm/transport/link_settings.hpp"

namespace deltapipe {

/// The link from one rank of a pipeline to another: forward to the next one, backward to the one
/// before. The last rank's to the first is a further entry of `forward` where there is one, else as
/// fast as its link backward; so is the first one's to the last of `backward`, or as its link
/// forward. Two ranks have one link in each direction.
LinkSettings link_between(const NetworkSettings& network, int from, int to, int pipeline_ranks);

/// All that a rank sends to another passes one link.
class RankLinks {
 public:
  RankLinks(const NetworkSettings& network, int pipeline_rank, int pipeline_ranks);
  /// With WireSharing::rank the rank's wire, both directions; else none.
  const RankWire& wire() const { return wire_; }
  /// Never null.
  std::shared_ptr<EmulatedLink> to(int pipeline_rank);

 private:
  NetworkSettings network_;
  int rank_;
  int ranks_;
  RankWire wire_;
  std::map<int, std::shared_ptr<EmulatedLink>> links_;
};

}  // namespace deltapipe
