// SPDX-License-Identifier: BSD-3-Clause
// A window of steps over which a sender sums moments of rows, which fades from step to step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/base/state/state.hpp"

namespace deltapipe::codec {

/// Counts rows; sums themselves are multiplied by fade() when rows are added to them.
class FadingWindow {
 public:
  /// To be called for each crossing, before others.
  void begin(std::uint64_t step, int channels) {
    if (step == step_) return;
    const double steps = kRowsPerChannel * channels / std::max(rows_of_step_, 1);
    const double left = 1 - 1 / std::clamp(steps, kShortest, kLongest);
    step_ = step;
    rows_of_step_ = 0;
    fade_ *= static_cast<float>(left);
    rows_ *= left;
    weight2_ *= left;
  }
  /// True if more rows of this step would add little.
  bool has_enough_of_step(int channels) const {
    return rows_of_step_ >= kRowsPerChannel / kShortest * channels;
  }
  /// weight2: sum of the rows' squared weights.
  void add(int rows, double weight2) {
    fade_ = 1;
    weight2_ += weight2;
    rows_ += rows;
    rows_of_step_ += rows;
  }
  /// Factor for the sums before rows are added; add() comes next.
  float fade() const { return fade_; }
  double rows() const { return rows_; }
  /// Weight of all rows, as sums have faded so far; rows that have not faded yet count in full.
  double unfaded_weight2() const { return weight2_ / static_cast<double>(fade_); }
  bool has_rows() const { return weight2_ > 0; }

  /// Items whose names begin with `prefix`.
  void write_state(StateWriter& writer, const std::string& prefix) const {
    write_scalar(writer, prefix + "weight2", weight2_);
    write_scalar(writer, prefix + "rows", rows_);
    write_scalar(writer, prefix + "step", step_);
    write_scalar(writer, prefix + "rows_of_step", rows_of_step_);
    write_scalar(writer, prefix + "fade", fade_);
  }
  void read_state(StateReader& reader, const std::string& prefix) {
    weight2_ = read_scalar<double>(reader, prefix + "weight2");
    rows_ = read_scalar<double>(reader, prefix + "rows");
    step_ = read_scalar<std::uint64_t>(reader, prefix + "step");
    rows_of_step_ = read_scalar<std::int32_t>(reader, prefix + "rows_of_step");
    fade_ = read_scalar<float>(reader, prefix + "fade");
  }

 private:
  /// Rows per channel in the window: more would hardly better a fit. The window has as many steps
  /// as that takes, within limits; what drifts and what memories have lost changes with time.
  static constexpr double kRowsPerChannel = 64;
  static constexpr double kShortest = 4;
  static constexpr double kLongest = 24;

  double weight2_ = 0;
  double rows_ = 0;
  std::uint64_t step_ = 0;
  std::int32_t rows_of_step_ = 0;
  float fade_ = 0;
};

}  // namespace deltapipe::codec
