// SPDX-License-Identifier: BSD-3-Clause
// Settings of a pipeline's layout and schedule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/boundary/settings.hpp"
#include "comm/replicas/settings.hpp"
#include "comm/transport/link_settings.hpp"
#include "comm/transport/message.hpp"
#include "core/base/numeric/precision.hpp"
#include "core/cache/settings.hpp"
#include "core/codec/crossing.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe {

/// Each micro-batch under way uses a message buffer at both ends; one more buffer is being filled.
inline constexpr int kMostInFlight = kMostMessageBuffers - 1;
/// There are tags for the channels of this many boundaries between two ranks.
inline constexpr int kMostStagesPerRank = 32;

struct PipelineSettings {
  int stages = 1;
  int replicas = 1;               ///< a run needs pipeline_ranks() * replicas ranks
  int stages_per_rank = 1;        ///< divides `stages`
  std::string schedule = "1f1b";  ///< a name of schedules()
  int in_flight = 1;  ///< micro-batches that may be under way at a boundary; not for GPipe
  double timeout_seconds = 600;         ///< silence after which a rank counts as lost; 0: never
  std::vector<int> partition;           ///< blocks per stage; empty: balanced by counted cost
  std::uint64_t verify_replicas = 500;  ///< steps between comparisons of replicas' weights; 0: none
  double step_timeout_seconds = 0;      ///< longest step; 0: no limit
  bool gpu_aware_mpi = false;           ///< MPI reads and writes device memory

  PayloadMemory payload_memory() const {
    return gpu_aware_mpi ? PayloadMemory::device : PayloadMemory::host;
  }
  int pipeline_ranks() const { return stages / stages_per_rank; }
  bool operator==(const PipelineSettings&) const = default;
};

/// Distribution of a mean number of bits per value over boundaries.
enum class BudgetSharing {
  equal,  ///< all have the mean
  time    ///< shares by link speed, so that values take equally long on all emulated links
};

/// Target of the sender's steps in one direction (StepController), for codecs with
/// CodecSettings::rms_step. At most one of bits and error is set.
struct RateSettings {
  /// Bits per value over a run, one for all boundaries or one per boundary; empty or 0: no target.
  std::vector<double> target_bits;
  BudgetSharing budget = BudgetSharing::equal;
  double target_error = 0;  ///< relative RMS error of what is sent; 0: no target

  bool has_bits() const {
    return std::any_of(target_bits.begin(), target_bits.end(), [](double b) { return b > 0; });
  }
  bool operator==(const RateSettings&) const = default;
};

/// Moves of memories by the crops of the views that training draws of images (ImageSettings).
struct MemoryMoves {
  int padding = 0;     ///< pixels; 0: memories stay
  bool flips = false;  ///< half of the views are flipped

  bool has_any() const { return padding > 0; }
  bool operator==(const MemoryMoves&) const = default;
};

/// Everything that a pipeline is built from, except its model and data.
struct PipelineOptions {
  PipelineSettings pipeline;
  CodecSettings forward, backward;  ///< codec of each direction
  RateSettings forward_rate, backward_rate;
  EvaluationSettings evaluation;
  CacheSettings cache;
  MemoryMoves moves;
  CacheGenerations generations;
  NetworkSettings network;
  ReplicaSettings replicas;
  std::uint64_t seed = 0;
  int micro_batch_size = 1;  ///< B
  int micro_batches = 1;     ///< M, of a step and replica
  ProductPrecision products = ProductPrecision::fp32;
  bool recompute = false;             ///< recomputes activations in every stage ...
  std::vector<int> recompute_stages;  ///< ... or only in these stages
};

}  // namespace deltapipe
