// SPDX-License-Identifier: BSD-3-Clause
// Measurements of ranks in a step, as one row of numbers that a collective can sum.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/pipeline/step_record.hpp"
#include "core/codec/quantizer/step_controller.hpp"

namespace deltapipe {

/// Measurements of a rank since the last take_measurements(). The sum over all ranks is the record
/// of the step.
struct StepMeasurements {
  StepMeasurements(int stages, int pipeline_ranks, int replicas);
  std::span<double> values() { return values_; }
  StepMeasurements& operator+=(const StepMeasurements& other);
  /// Fills a record's vectors, after the sum over ranks.
  void fill(StepRecord& record) const;

  /// Returns the value of a rank of the pipeline.
  double& rank(int pipeline_rank, RankValue value) {
    return values_[kRankValues * pipeline_rank + static_cast<std::size_t>(value)];
  }
  enum Field { bytes, error2, signal2, wire, step_sum, step_messages, fields };
  double& direction(int boundary, bool backward, Field field);
  /// Tied rows, which go backward from the last stage to the first, and their gradients.
  double& tied(bool gradients, Field field) { return direction(stages_ - 1, !gradients, field); }
  /// Returns the bytes of collectives.
  double& collectives() { return values_[values_.size() - 3]; }
  /// Squared errors of what replicas sent for their sums, and squares of the values.
  double& replica_error2() { return values_[values_.size() - 2]; }
  double& replica_signal2() { return values_.back(); }

 private:
  int stages_;
  int pipeline_ranks_;
  int replicas_;
  std::vector<double> values_;
};

/// Number of values in a StepTotals.
inline constexpr std::size_t kStepTotals = 7;
/// Returns the totals from the sum over ranks of Pipeline::step_totals().
StepTotals step_totals_of(std::span<const double> values, int boundary, bool backward);

}  // namespace deltapipe
