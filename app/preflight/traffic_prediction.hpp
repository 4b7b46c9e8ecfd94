// SPDX-License-Identifier: BSD-3-Clause
// The bytes that a run puts on the wire and the time that its links need for them, before it runs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "app/preflight/message_sizes.hpp"
#include "app/session/session.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "core/data/dataset.hpp"

namespace deltapipe {

/// Mean seconds of a step, for one replica.
struct LinkLoad {
  std::string name;  ///< "rank 0 to 1", "rank 0 to replicas", or "rank 0 out" with one wire a rank
  double busy_seconds = 0;  ///< a message is passing
};

struct TrafficPrediction {
  std::uint64_t steps = 0;
  std::uint64_t counted_steps = 0;  ///< the rest is their continuation
  /// Of all steps. Equal to the columns of run.h5 where every codec has a fixed length and all
  /// steps were counted, else an upper bound.
  std::vector<WireBytes> forward, backward;  ///< by boundary
  WireBytes tied_rows, tied_gradients;       ///< rows of a tied embedding, or relative embeddings
  bool shares_common_values = false;         ///< they are relative embeddings
  std::vector<std::uint64_t> replica_bytes;  ///< by rank of a pipeline
  std::uint64_t replica_fp32 = 0;            ///< of all ranks, for sums in fp32 in every step
  std::uint64_t evaluations = 0;             ///< each in every mode
  std::vector<WireBytes> evaluation_forward;
  WireBytes evaluation_rows;
  std::vector<LinkLoad> links;  ///< empty: the deck names no links
  double step_seconds = 0;      ///< on the links, if computing took no time

  bool counts_all_steps() const { return counted_steps == steps; }
  WireBytes boundaries() const;    ///< of training, with token rows and their gradients
  std::uint64_t replicas() const;  ///< sum of replica_bytes
  WireBytes evaluation_bytes() const;
};

/// Evaluations of a run with validation data.
std::uint64_t evaluations_of_run(const TrainingSettings& training, std::uint64_t steps,
                                 std::uint64_t steps_per_epoch);

/// Counts the messages of the run step by step, as training forms them. Long runs are counted in
/// part and continued with the mean of their later steps.
TrafficPrediction predict_traffic(const Settings& settings, const ModelLayout& model,
                                  const PipelineShape& shape, const DataSplit& data,
                                  std::uint64_t steps);

}  // namespace deltapipe
