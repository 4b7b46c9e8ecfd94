// SPDX-License-Identifier: BSD-3-Clause
// Settings of emulated links: speed and sharing.
#pragma once

#include <vector>

namespace deltapipe {

/// One direction of one emulated link.
struct LinkSettings {
  double bits_per_second = 0;  ///< 0: as fast as MPI
  double latency_seconds = 0;

  bool operator==(const LinkSettings&) const = default;
};

/// Largest number of message buffers of a channel; each has its own MPI tags.
inline constexpr int kMostMessageBuffers = 127;

/// boundary: each direction of each boundary is a separate link.
/// rank: one wire joins each rank to the network and carries everything that the rank sends and
/// receives, one message at a time in each direction.
enum class WireSharing { boundary, rank };

/// Emulated links between the ranks of a pipeline. Entry i of a list joins ranks i and i + 1. If a
/// list has as many entries as ranks, the last entry joins the last rank and the first. A single
/// entry applies to all links. Empty lists: no emulation.
struct NetworkSettings {
  WireSharing wire = WireSharing::boundary;
  std::vector<LinkSettings> forward;
  std::vector<LinkSettings> backward;
  /// With WireSharing::rank: entry i belongs to rank i of a pipeline.
  std::vector<LinkSettings> ranks;
  /// With WireSharing::boundary: each rank's link to the replicas of its stages, which carries all
  /// that it sends them. With WireSharing::rank the rank's wire does.
  LinkSettings replicas;

  bool operator==(const NetworkSettings&) const = default;
};

}  // namespace deltapipe
