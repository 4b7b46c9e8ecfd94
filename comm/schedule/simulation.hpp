// SPDX-License-Identifier: BSD-3-Clause
// Simulates the programs of all ranks with given costs, without models or messages. It shows how
// long a step takes, which ranks wait, and whether the programs deadlock.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "comm/schedule/schedule.hpp"

namespace deltapipe {

/// Cost of one direction of a link. A message leaves after all earlier ones have left, and arrives
/// `message_seconds + latency_seconds` later.
struct LinkCost {
  double message_seconds = 0;
  double latency_seconds = 0;
};

struct SimulationCosts {
  double forward = 1;  ///< seconds of a stage
  double backward = 2;
  double parameter_share = 0.5;  ///< part of backward for gradients of parameters
  double update = 0;
  LinkCost activation, gradient, embedding, common_gradient, common_values;
  /// Largest number of messages that were sent and not yet received, per direction of a boundary; a
  /// further send waits. Shared parameters have no limit.
  int buffers = std::numeric_limits<int>::max();
};

struct TimelineEntry {
  Instruction instruction;
  double begin = 0;
  double end = 0;
};

struct Simulation {
  /// Timeline of each rank, in its order; it includes instructions that take no time.
  std::vector<std::vector<TimelineEntry>> ranks;
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
/// gradients. Dashes continue a pass; at dots the rank waits. If ranks have several stages, F3@5 is
/// the forward pass at stage 5.
std::string grid_of(const Simulation& simulation, double seconds_per_column = 1);

}  // namespace deltapipe
