// SPDX-License-Identifier: BSD-3-Clause
// Emulated links: how fast they are and who shares one.
#pragma once

#include <vector>

namespace deltapipe {

/// One direction of one emulated link.
struct LinkSettings {
  double bits_per_second = 0;  ///< 0: as fast as MPI carries it
  double latency_seconds = 0;

  bool operator==(const LinkSettings&) const = default;
};

/// Message buffers of a channel: each has MPI tags of its own.
inline constexpr int kMostMessageBuffers = 127;

/// boundary: each direction of each boundary is a link of its own. rank: one wire joins each rank
/// to the network, one message at a time in each direction, and all that it sends and receives
/// passes it.
enum class WireSharing { boundary, rank };

/// Emulated links between the ranks of a pipeline. Entry i of a list joins ranks i and i + 1, the
/// last one of a list with as many entries as ranks the last rank and the first; one entry serves
/// all; none: no emulation.
struct NetworkSettings {
  WireSharing wire = WireSharing::boundary;
  std::vector<LinkSettings> forward;
  std::vector<LinkSettings> backward;
  std::vector<LinkSettings>
      ranks;  ///< with WireSharing::rank: entry i is that of rank i of a pipeline

  bool operator==(const NetworkSettings&) const = default;
};

}  // namespace deltapipe
