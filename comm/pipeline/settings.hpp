// SPDX-License-Identifier: BSD-3-Clause
// The layout of a pipeline and the order of its work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/transport/link_settings.hpp"
#include "core/base/crossing.hpp"
#include "core/cache/settings.hpp"
#include "core/codec/settings.hpp"
#include "core/codec/without_memory.hpp"

namespace deltapipe {

/// Each micro-batch under way takes a message buffer at both ends, and one more is being filled.
inline constexpr int kMostInFlight = kMostMessageBuffers - 1;

struct PipelineSettings {
  int stages = 1;                 ///< K
  int replicas = 1;               ///< R; ranks needed: K * R
  std::string schedule = "1f1b";  ///< a name of schedules()
  int in_flight = 1;             ///< 1F1B: micro-batches per boundary that may be under way at once
  double timeout_seconds = 600;  ///< silence after which a rank counts as lost; 0: never
  std::vector<int> partition;    ///< blocks per stage; empty: balanced by counted cost
  std::uint64_t verify_replicas = 500;  ///< steps between comparisons of replicas' weights; 0: none

  bool operator==(const PipelineSettings&) const = default;
};

/// What crosses boundaries in evaluations and generation.
struct EvaluationSettings {
  std::vector<EvaluationMode> modes = {EvaluationMode::fp32};  ///< each once, in this order
  ChangesWithoutMemory changes = ChangesWithoutMemory::first_visit;

  bool has(EvaluationMode mode) const {
    return std::find(modes.begin(), modes.end(), mode) != modes.end();
  }
  bool operator==(const EvaluationSettings&) const = default;
};

/// All that a pipeline is built from but its model and data.
struct PipelineOptions {
  PipelineSettings pipeline;
  CodecSettings forward, backward;  ///< what crosses a boundary in that direction
  EvaluationSettings evaluation;
  CacheSettings cache;
  CacheGenerations generations;
  NetworkSettings network;
  std::uint64_t seed = 0;
  int micro_batch_size = 1;           ///< B
  int micro_batches = 1;              ///< M, of a step and replica
  bool recompute = false;             ///< activation recomputation in every stage ...
  std::vector<int> recompute_stages;  ///< ... or only in these
};

}  // namespace deltapipe
