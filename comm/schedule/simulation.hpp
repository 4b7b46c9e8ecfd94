// SPDX-License-Identifier: BSD-3-Clause
// Simulates the programs of all ranks with given costs, without models or messages. It shows how
// long a step takes, what ranks wait for, and whether the programs deadlock.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "comm/schedule/schedule.hpp"

namespace deltapipe {

/// Seconds of a stage's passes.
struct PassCost {
  double forward = 1;
  double backward = 2;
  double parameter_share = 0.5;  ///< part of backward for gradients of parameters
};

/// Seconds of a message. Its sender encodes it and its receiver decodes it, in the time of their
/// passes.
struct LinkCost {
  double message_seconds = 0;  ///< during which the message occupies the link
  double latency_seconds = 0;
  double encode_seconds = 0;
  double decode_seconds = 0;
};

/// Links that messages share. On each, messages pass one after the other, in the order in which
/// they reach it.
enum class LinkSharing {
  /// Each direction between two ranks is a link.
  rank_pairs,
  /// A message passes its sender's wire out and, one latency later, its receiver's wire in.
  rank_wires,
  /// Each rank receives over one wire from all others. A message occupies it for message_seconds
  /// and latency_seconds.
  receiver_wires
};

/// Sum of gradients over replicas. It occupies a link of the stage's rank.
struct SumCost {
  double seconds = 0;
  int parts = 1;  ///< that the last backward pass completes one after the other
  double latency_seconds = 0;
  int pieces = 1;  ///< between which other messages pass the rank's wire
};

/// Lists have an entry for each stage or boundary, or one that applies to all of them.
struct SimulationCosts {
  std::vector<PassCost> stages = {{}};
  std::vector<LinkCost> activations = {{}};
  std::vector<LinkCost> gradients = {{}};
  LinkCost embedding, embedding_gradient, common_gradient, common_values;
  std::vector<SumCost> sums = {{}};
  SumCost embedding_sum, common_sum;  ///< start when the gradients are added up, after all passes
  double update = 0;
  LinkSharing sharing = LinkSharing::rank_pairs;
  /// Largest number of messages that were sent and not yet received, per direction of a boundary; a
  /// further send waits. Shared parameters have no limit.
  int buffers = std::numeric_limits<int>::max();
};

struct TimelineEntry {
  Instruction instruction;
  double begin = 0;
  double end = 0;
};

/// Use of a step by a rank. Waits at the end of the step, for slower ranks, are part of none.
struct RankSeconds {
  double compute = 0;  ///< passes and the update
  double codec = 0;
  double wire = 0;      ///< waits for messages that were sent, and for room to send
  double bubble = 0;    ///< waits for messages that were not sent yet
  double replicas = 0;  ///< waits for sums over replicas
};

struct Simulation {
  /// Timeline of each rank, in its order; it includes instructions that take no time.
  std::vector<std::vector<TimelineEntry>> ranks;
  std::vector<RankSeconds> seconds;  ///< by rank
  /// The instruction at which each rank is stuck if the programs deadlock; else empty.
  std::string deadlock;

  double makespan() const;
  /// Returns the part of the makespan in which a rank computes, averaged over the ranks.
  double busy_fraction() const;
};

/// Throws InternalError when a receive meets another message than the expected one, or a message is
/// never received.
Simulation simulate(const std::vector<Program>& programs, const SimulationCosts& costs);

/// Returns a row per rank and a column per `seconds_per_column`. F3 and B3 mark the beginning of
/// the forward and backward pass of micro-batch 3; W3 that of a separate pass for its parameters'
/// gradients; C3 that of encoding or decoding its message. Dashes continue a pass; at dots the rank
/// waits. If ranks have several stages, F3@5 is the forward pass at stage 5.
std::string grid_of(const Simulation& simulation, double seconds_per_column = 1);

}  // namespace deltapipe
