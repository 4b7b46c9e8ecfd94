// SPDX-License-Identifier: BSD-3-Clause
// Record of a training step, after all ranks have summed their measurements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace deltapipe {

/// Values of one direction in one step; every vector has one entry per boundary.
struct DirectionRecord {
  std::vector<std::uint64_t> bytes;  ///< bytes on the wire of all replicas, including headers
  std::vector<double> error;         ///< relative RMS error of the codec; NaN: not measured
  /// Time with at least one message in transit, mean over replicas.
  std::vector<double> wire_seconds;
  /// Mean rms_step of the sent messages; NaN: none was sent in steps of the RMS.
  std::vector<double> step;
};

/// Column with one number per rank of a pipeline.
struct RankColumn {
  const char* name;
  const char* unit;
  const char* description;
};

/// Values of a rank in a step, in the order of kRankColumns. They cover the time from the previous
/// step's measurements to this step's, without evaluations and output.
enum class RankValue {
  wall,
  compute,
  codec,
  cache,
  wire_exposed,
  bubble,
  replicas,
  other,
  wire,
  wire_hidden,
  cache_stall,
  cache_first_visits,
  cache_hits,
  cache_misses,
  cache_late_misses,
  cache_damaged,
  cache_read,
  cache_written,
  replica_bytes,
  count
};
inline constexpr std::size_t kRankValues = static_cast<std::size_t>(RankValue::count);
/// Columns of RankValue. Seconds are means over the replicas; counts and bytes are sums.
extern const std::array<RankColumn, kRankValues> kRankColumns;
inline constexpr bool is_seconds(RankValue value) {
  return value <= RankValue::cache_stall;
}
using RankRecord = std::array<double, kRankValues>;

struct StepRecord {
  std::uint64_t step = 0;  ///< counted from 1
  double epoch = 0;        ///< passes over the training data, with fraction
  double seconds = 0;      ///< training time up to the step's measurements, without evaluations
  double loss = 0;         ///< mean over the step's tokens, nats
  double learning_rate = 0;
  double gradient_norm = 0;  ///< global, before clipping
  std::uint64_t tokens = 0;  ///< predicted tokens in this step, all replicas
  std::uint64_t samples = 0;
  DirectionRecord forward;
  DirectionRecord backward;
  /// Bytes of tied embeddings: token rows from the last stage to the first, and their gradients
  /// back.
  std::uint64_t tied_row_bytes = 0;
  std::uint64_t tied_gradient_bytes = 0;
  std::uint64_t collective_bytes = 0;  ///< bytes of collectives of all ranks together
  double tied_row_error = 0;           ///< relative RMS error of their codec; NaN: not measured
  double tied_gradient_error = 0;
  double replica_error = 0;       ///< relative RMS error of sums over replicas; NaN: not measured
  std::vector<RankRecord> ranks;  ///< one entry per rank of a pipeline
};

}  // namespace deltapipe
