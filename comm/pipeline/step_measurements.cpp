// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/step_measurements.hpp"

#include <cmath>
#include <limits>

#include "core/base/error.hpp"

namespace deltapipe {

namespace {

/// Returns the relative RMS error from sums of squares; NaN if nothing was measured.
double relative_error(double error, double signal) {
  return signal > 0 ? std::sqrt(error / signal) : std::numeric_limits<double>::quiet_NaN();
}

/// Returns NaN if count is 0.
double mean_of(double sum, double count) {
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

StepMeasurements::StepMeasurements(int stages, int pipeline_ranks, int replicas)
    : stages_(stages),
      pipeline_ranks_(pipeline_ranks),
      replicas_(replicas),
      values_(kRankValues * pipeline_ranks + 2 * stages * fields + 3) {}

StepMeasurements& StepMeasurements::operator+=(const StepMeasurements& other) {
  DELTAPIPE_ASSERT(values_.size() == other.values_.size(), "measurements of other layouts");
  for (std::size_t i = 0; i < values_.size(); ++i) values_[i] += other.values_[i];
  return *this;
}

double& StepMeasurements::direction(int boundary, bool backward, Field field) {
  return values_[kRankValues * pipeline_ranks_ + (2 * boundary + (backward ? 1 : 0)) * fields +
                 field];
}

void StepMeasurements::fill(StepRecord& record) const {
  auto& self = const_cast<StepMeasurements&>(*this);
  record.ranks.clear();
  record.forward = record.backward = {};
  for (int k = 0; k < pipeline_ranks_; ++k) {
    RankRecord& rank = record.ranks.emplace_back();
    for (std::size_t i = 0; i < kRankValues; ++i) {
      const auto value = static_cast<RankValue>(i);
      rank[i] = self.rank(k, value) / (is_seconds(value) ? replicas_ : 1);
    }
  }
  for (int b = 0; b + 1 < stages_; ++b)
    for (const bool backward : {false, true}) {
      DirectionRecord& d = backward ? record.backward : record.forward;
      d.bytes.push_back(static_cast<std::uint64_t>(self.direction(b, backward, bytes)));
      d.error.push_back(relative_error(self.direction(b, backward, error2),
                                       self.direction(b, backward, signal2)));
      d.wire_seconds.push_back(self.direction(b, backward, wire) / replicas_);
      d.step.push_back(mean_of(self.direction(b, backward, step_sum),
                               self.direction(b, backward, step_messages)));
    }
  record.tied_row_bytes = static_cast<std::uint64_t>(self.tied(false, bytes));
  record.tied_gradient_bytes = static_cast<std::uint64_t>(self.tied(true, bytes));
  record.collective_bytes = static_cast<std::uint64_t>(self.collectives());
  record.tied_row_error = relative_error(self.tied(false, error2), self.tied(false, signal2));
  record.replica_error = relative_error(self.replica_error2(), self.replica_signal2());
  record.tied_gradient_error = relative_error(self.tied(true, error2), self.tied(true, signal2));
}

StepTotals step_totals_of(std::span<const double> values, int boundary, bool backward) {
  const std::span<const double> v = values.subspan(kStepTotals * (2 * boundary + backward));
  return {v[0], v[1], v[2], v[3], v[4], v[5], v[6]};
}

}  // namespace deltapipe
