// SPDX-License-Identifier: BSD-3-Clause
// Results and traffic of an evaluation.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "core/codec/crossing.hpp"
#include "core/stage/task.hpp"

namespace deltapipe {

struct MetricValue {
  const Metric* metric;  ///< of the task, which lives as long as the program or the model
  double value;
};

/// Results and traffic of an evaluation in one mode.
struct EvaluationFigures {
  double loss = 0;                   ///< mean over all targets, nats
  std::vector<MetricValue> metrics;  ///< the task's, in its order
  /// Share of the prompts whose greedy answer is the expected one; NaN: there are no prompts.
  double exact_match = std::numeric_limits<double>::quiet_NaN();
  /// Bytes on the wire of all replicas, including headers. One entry per boundary.
  std::vector<std::uint64_t> forward_bytes;
  std::uint64_t tied_row_bytes = 0;
  std::uint64_t collective_bytes = 0;
};

/// Returns all bytes except those of sums over ranks.
std::uint64_t wire_bytes(const EvaluationFigures& figures);

struct EvaluationRecord {
  std::uint64_t step = 0;    ///< steps that were completed before
  double epoch = 0;          ///< passes over the training data, with fraction
  double seconds = 0;        ///< training time so far, without evaluations
  std::uint64_t tokens = 0;  ///< targets (predicted tokens), without those of answers
  /// By what crossed boundaries: plain activations or the codecs' messages; empty: not evaluated.
  std::optional<EvaluationFigures> plain, codec;

  std::optional<EvaluationFigures>& of(EvaluationMode mode) {
    return mode == EvaluationMode::plain ? plain : codec;
  }
  const std::optional<EvaluationFigures>& of(EvaluationMode mode) const {
    return mode == EvaluationMode::plain ? plain : codec;
  }
};

}  // namespace deltapipe
