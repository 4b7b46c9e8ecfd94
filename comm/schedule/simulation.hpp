// SPDX-License-Identifier: BSD-3-Clause
// Runs the programs of all ranks with given costs, without models or messages: how long a step
// takes, who waits, and whether it ends at all.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "comm/schedule/schedule.hpp"

namespace deltapipe {

/// One direction of one link: a message leaves when those before it have, and arrives
/// `message_seconds + latency_seconds` later.
struct LinkCost {
  double message_seconds = 0;
  double latency_seconds = 0;
};

struct SimulationCosts {
  double forward = 1;  ///< of a stage
  double backward = 2;
  double parameter_share = 0.5;  ///< of backward, for gradients of parameters
  double update = 0;
  LinkCost activation, gradient, embedding;
  /// Messages between a sender's send and the receiver's receive, per direction of a boundary; a
  /// further send waits. Shared embeddings have as many as they need.
  int buffers = std::numeric_limits<int>::max();
};

struct TimelineEntry {
  Instruction instruction;
  double begin = 0;
  double end = 0;
};

struct Simulation {
  /// Entries of every rank in order, instructions that take no time included.
  std::vector<std::vector<TimelineEntry>> ranks;
  /// Empty, or the instruction that each rank is stuck at: the programs deadlock.
  std::string deadlock;

  double makespan() const;
  /// The part of the makespan in which a rank computes, on average over the ranks.
  double busy_fraction() const;
};

/// Throws InternalError when a receive meets another message than the one that it waits for, or a
/// message is never received.
Simulation simulate(const std::vector<Program>& programs, const SimulationCosts& costs);

/// A row per rank and a column per `seconds_per_column`: F3 and B3 where the forward or backward
/// pass of micro-batch 3 begins, W3 where that of its parameters' gradients does when it is one of
/// its own, dashes while it goes on, dots where the rank waits. F3@5: where ranks have several
/// stages, that of stage 5.
std::string grid_of(const Simulation& simulation, double seconds_per_column = 1);

}  // namespace deltapipe
