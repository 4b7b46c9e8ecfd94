// SPDX-License-Identifier: BSD-3-Clause
// Prediction of what activations have become since their memories: the change of a sample's values
// between two visits is mostly what the weights' change does to all samples alike. The sender fits
// a linear map to changes that it has seen and sends it from time to time, if that pays; both ends
// apply it to memories and count changes from what it makes of them.
//
// The last word of a payload says if its changes are counted from predictions. The samples' factors
// precede it then, and a new map precedes these where the word says so. Crossings without a memory
// have no such word.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/codec/codec.hpp"
#include "core/codec/prediction/drift_fit.hpp"
#include "core/codec/prediction/drift_map.hpp"
#include "core/codec/wire/payload_word.hpp"

namespace deltapipe::codec {

/// Sums of a row of the micro-batch; zeros for a row without a memory or with values that are not
/// finite.
struct DriftRow {
  double change2;     ///< sum (x - m)^2
  double product;     ///< sum (x - m) d
  double predicted2;  ///< sum d^2
  float weight;       ///< in the fit: 1 / (root mean square of m), since the next block normalises
                      ///< rows; 0: it is left out
};

/// One end's. A sender calls choose, append and learn for a crossing, a receiver read and predict;
/// before choose and predict `memories` holds the rows' memories and `known` which rows have one.
class DriftPrediction {
 public:
  DriftPrediction(const CodecShape& shape, int interval);

  /// Most bytes at the end of a payload with changes.
  std::size_t most_bytes(const Crossing& crossing) const {
    return PayloadWord::kBytes + factor_bytes(crossing.samples()) +
           (may_refresh(crossing) ? map_.extent(0) : 0);
  }
  std::size_t most_bytes() const {
    return PayloadWord::kBytes + factor_bytes(shape_.max_samples) + map_.extent(0);
  }
  std::size_t memory_bytes() const;

  MatrixRef<float> memories() const { return m_NC_; }
  VectorRef<std::uint8_t> known() const { return known_N_; }

  /// Returns the rows that changes of x, the micro-batch's rows, are counted from. Waits.
  const float* choose(const ExecSpace& exec, const Crossing& crossing, const float* x, int rows);
  /// Writes the payload's end behind `end` bytes, a multiple of 4; returns its length.
  std::size_t append(const ExecSpace& exec, std::uint8_t* payload, std::size_t end);
  /// Takes note of the changes, once no kernel needs the rows that choose returned.
  void learn(const ExecSpace& exec, const float* x, int rows);

  /// Bytes of the payload's end. UserError, before anything changes, when it cannot be one. Waits.
  std::size_t read(const ExecSpace& exec, const Crossing& crossing, const std::uint8_t* payload,
                   std::size_t bytes);
  /// Returns the rows that changes are counted from; null: their memories. Of the payload that was
  /// read last.
  const float* predict(const ExecSpace& exec, const std::uint8_t* payload, int rows);
  /// A map has been sent so far.
  bool has_map() const { return has_map_; }
  /// True if predict needs memories and known.
  bool predicts() const { return word_ != kNone; }

  void add_statistics(CodecStatistics& statistics);
  void write_state(StateWriter& writer, const ExecSpace& exec) const;
  void read_state(StateReader& reader, const ExecSpace& exec);

 private:
  enum Word : std::uint32_t { kNone, kPredicted, kNewMap };
  /// Sums over rows of squares of what is sent without and with prediction, `weighted` as the fit
  /// weighs them.
  struct Sums {
    double change2 = 0, rest2 = 0;
    double weighted_change2 = 0, weighted_rest2 = 0;
    double weight2 = 0;
    int rows = 0;  ///< that count
  };

  static std::size_t factor_bytes(std::size_t samples) {
    return (sizeof(std::uint16_t) * samples + 3) / 4 * 4;
  }

  bool may_refresh(const Crossing& crossing) const {
    return crossing.micro_batch == 0 && crossing.step % interval_ == 0;
  }
  void load_weights(const ExecSpace& exec, const VectorRef<std::uint8_t>& map);
  /// p_NC := predicted changes; the map's weights are loaded.
  void find_changes(const ExecSpace& exec, const VectorRef<std::uint8_t>& map, int rows);
  /// p_NC := predictions, from predicted changes.
  void finish(const ExecSpace& exec, const std::uint16_t* factors, int rows);
  /// Also finds the samples' factors, if changes were predicted. Waits.
  Sums sum_up(const ExecSpace& exec, const float* x, int rows, bool predicted);
  /// Bits that prediction saves at equal error, for a number of values.
  static double saved_bits(double before, double after, double values);
  bool pays(const Sums& now, const Sums& then) const;
  bool is_sound(const ExecSpace& exec, const std::uint8_t* map) const;

  const CodecShape shape_;
  const std::uint64_t interval_;
  bool has_map_ = false;
  Word word_ = kNone;            ///< of the crossing at hand
  std::size_t factors_end_ = 0;  ///< in a payload that was read
  Sums sums_;
  double values_since_map_ = 0;  ///< that were sent as changes
  double change2_ = 0, rest2_ = 0;

  Vector<std::uint8_t> map_, candidate_;
  Matrix<float> weights_CC_;
  Matrix<float> m_NC_, p_NC_, inputs_NC_;
  Vector<float> step_N_;
  Vector<float> weight_N_;
  Vector<std::uint8_t> known_N_;
  std::size_t samples_ = 0;  ///< of the crossing at hand
  Vector<std::uint16_t> factors_B_;
  HostVector<std::uint16_t> host_factors_B_;
  Vector<DriftRow> rows_N_;
  HostVector<DriftRow> host_rows_N_;
  PayloadWord last_word_;
  DriftFit fit_;
};

}  // namespace deltapipe::codec
