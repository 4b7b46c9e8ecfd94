// SPDX-License-Identifier: BSD-3-Clause
// Fits the map of drift_map.hpp: a ridge regression of the change since a memory on the memory.
#pragma once

#include <cstddef>

#include "core/base/parallel/views.hpp"
#include "core/base/state/state.hpp"
#include "core/codec/prediction/fading_window.hpp"

namespace deltapipe::codec {

/// Moments of pairs (m, a - m), of rows with weights, in a window of some steps that fades.
class DriftFit {
 public:
  explicit DriftFit(int channels);

  /// To be called for each crossing, before others. Sums of former steps fade when a step begins.
  void begin(std::uint64_t step) { window_.begin(step, channels_); }
  /// True if more rows of this step would add little.
  bool has_enough_of_step() const { return window_.has_enough_of_step(channels_); }
  /// Rows m_NC and d_NC = a - m, both multiplied by the row's weight, and the weights; rows that do
  /// not count are zeros. weight2: sum of the squared weights; rows: how many count.
  void add(const ExecSpace& exec, const MatrixRef<float>& m_NC, const MatrixRef<float>& d_NC,
           const VectorRef<float>& weight_N, double weight2, int rows);
  /// True if there are enough rows for a map.
  bool can_fit() const;
  /// Writes the map; work_CC is overwritten. A map without meaning has NaN in its scales.
  void fit(const ExecSpace& exec, const MatrixRef<float>& work_CC,
           const VectorRef<std::uint8_t>& map);

  std::size_t memory_bytes() const;
  void write_state(StateWriter& writer, const ExecSpace& exec) const;
  void read_state(StateReader& reader, const ExecSpace& exec);

 private:
  int channels_;
  FadingWindow window_;
  // Sums over weighted rows: m m^T, m d^T, and both with the weight.
  Matrix<float> gram_CC_;
  Matrix<float> cross_CC_;
  Matrix<float> sum_m_1C_;
  Matrix<float> sum_d_1C_;
  Matrix<float> solution_CC_;
  Vector<float> gain_C_;
};

}  // namespace deltapipe::codec
