// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/prediction/drift_prediction.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/row.hpp"
#include "core/base/state/state_views.hpp"
#include "core/codec/quantizer/scales.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/kernels/gemm/gemm.hpp"

namespace deltapipe::codec {

namespace {

using ReadMap = DriftMap<const std::uint8_t>;

struct LoadWeights {
  ReadMap map;
  float* weights_CC;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int i = team.league_rank();
    const std::int8_t* from = map.row(i);
    float* to = weights_CC + static_cast<std::size_t>(i) * map.channels;
    row_for(team, map.channels, [=](int c) { to[c] = static_cast<float>(from[c]); });
  }
};

struct QuantizeInputs {
  ReadMap map;
  float largest;
  const float* m_NC;
  float* inputs_NC;
  float* step_N;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int row = team.league_rank();
    const std::size_t first = static_cast<std::size_t>(row) * map.channels;
    const float step = quantize_inputs(team, map, largest, m_NC + first, inputs_NC + first);
    float* steps = step_N;
    row_once(team, [=]() { steps[row] = step; });
  }
};

/// Sums of products become predicted changes.
struct FinishChanges {
  ReadMap map;
  const float* step_N;
  float* p_NC;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int row = team.league_rank();
    const float step = step_N[row];
    const float* scale = map.scale();
    const float* shift = map.shift();
    float* p = p_NC + static_cast<std::size_t>(row) * map.channels;
    row_for(team, map.channels,
            [=](int c) { p[c] = predicted_change(p[c], step, scale[c], shift[c]); });
  }
};

/// Predicted changes become predictions.
struct AddChanges {
  int tokens;
  int channels;
  const std::uint16_t* factors_B;
  const float* m_NC;
  float* p_NC;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int row = team.league_rank();
    const std::size_t first = static_cast<std::size_t>(row) * channels;
    const float factor = float_of_step(factors_B[row / tokens]);
    const float* m = m_NC + first;
    float* p = p_NC + first;
    row_for(team, channels, [=](int c) { p[c] = predicted_value(m[c], factor, p[c]); });
  }
};

/// Largest ratio of a row's squared change to its square in the fit: more is no drift, and products
/// of the largest numbers would leave fp32.
constexpr double kLargestChange2 = 1e6;

/// p_NC: predicted changes; null without a prediction.
struct SumUpRows {
  int channels;
  const float* x_NC;
  const float* m_NC;
  const float* p_NC;
  const std::uint8_t* known_N;
  DriftRow* rows_N;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int row = team.league_rank();
    const std::size_t first = static_cast<std::size_t>(row) * channels;
    const float* x = x_NC + first;
    const float* m = m_NC + first;
    const float* p = p_NC == nullptr ? nullptr : p_NC + first;
    bool counts = known_N[row] != 0;
    if (counts)
      counts = row_max(team, channels, 0u, [=](int c) { return bits_of(x[c]) & 0x7fffffffu; }) <
               kInfinityBits;
    DriftRow sums{0, 0, 0, 0};
    if (counts) {
      const auto change = [=](int c) {
        return static_cast<double>(x[c]) - static_cast<double>(m[c]);
      };
      sums.change2 = row_sum<double>(team, channels, [=](int c) { return change(c) * change(c); });
      const double m2 = row_sum<double>(team, channels, [=](int c) {
        return static_cast<double>(m[c]) * static_cast<double>(m[c]);
      });
      const double mean = m2 / channels;
      const bool fits = mean > 1e-30 && mean < 1e30 && sums.change2 < kLargestChange2 * m2;
      sums.weight = fits ? static_cast<float>(1 / std::sqrt(mean)) : 0;
      if (p != nullptr) {
        sums.product = row_sum<double>(
            team, channels, [=](int c) { return change(c) * static_cast<double>(p[c]); });
        sums.predicted2 = row_sum<double>(team, channels, [=](int c) {
          return static_cast<double>(p[c]) * static_cast<double>(p[c]);
        });
      }
    }
    DriftRow* to = rows_N + row;
    row_once(team, [=]() { *to = sums; });
  }
};

/// m := m weight, p := (x - m) weight.
struct WeighRows {
  int channels;
  const float* x_NC;
  const DriftRow* rows_N;
  float* m_NC;
  float* p_NC;
  float* weight_N;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int row = team.league_rank();
    const std::size_t first = static_cast<std::size_t>(row) * channels;
    const float weight = rows_N[row].weight;
    const float* x = x_NC + first;
    float* m = m_NC + first;
    float* p = p_NC + first;
    float* weights = weight_N;
    row_once(team, [=]() { weights[row] = weight; });
    if (weight == 0.0f) {
      row_for(team, channels, [=](int c) { m[c] = p[c] = 0.0f; });
      return;
    }
    row_for(team, channels, [=](int c) {
      p[c] = (x[c] - m[c]) * weight;
      m[c] *= weight;
    });
  }
};

/// Adds 1 for each factor that is too large or no number.
struct CountLargeFactors {
  const std::uint16_t* factors;

  KOKKOS_INLINE_FUNCTION void operator()(int b, int& flaws) const {
    flaws += float_of_step(factors[b]) <= kLargestFactor ? 0 : 1;
  }
};

/// Adds 1 for each NaN and for each weight that is too large.
struct CountFlaws {
  ReadMap map;

  KOKKOS_INLINE_FUNCTION void operator()(int row, int& flaws) const {
    for (int array = 0; array < 4; ++array) flaws += is_nonfinite(map.floats(array)[row]);
    const std::int8_t* weights = map.row(row);
    for (int c = 0; c < map.channels; ++c) flaws += weights[c] < -kLargestWeight ? 1 : 0;
  }
};

Matrix<float> matrix(const char* label, std::size_t rows, std::size_t columns) {
  return Matrix<float>(uninitialized(label), rows, columns);
}

std::size_t rows_of_shape(const CodecShape& shape) {
  return static_cast<std::size_t>(shape.max_samples) * shape.tokens;
}

/// Rows of the buffers that only a sender needs.
std::size_t encoded_rows(const CodecShape& shape) {
  return shape.encodes() ? rows_of_shape(shape) : 0;
}

}  // namespace

DriftPrediction::DriftPrediction(const CodecShape& shape, int interval)
    : shape_(shape),
      interval_(interval),
      // Zeros: their padding travels.
      map_("deltapipe::DriftPrediction::map", DriftMap<std::uint8_t>::size(shape.channels)),
      candidate_("deltapipe::DriftPrediction::candidate", shape.encodes() ? map_.extent(0) : 0),
      weights_CC_(matrix("deltapipe::DriftPrediction::weights", shape.channels, shape.channels)),
      m_NC_(matrix("deltapipe::DriftPrediction::memories", rows_of_shape(shape), shape.channels)),
      p_NC_(
          matrix("deltapipe::DriftPrediction::predictions", rows_of_shape(shape), shape.channels)),
      inputs_NC_(
          matrix("deltapipe::DriftPrediction::inputs", rows_of_shape(shape), shape.channels)),
      step_N_(uninitialized("deltapipe::DriftPrediction::steps"), rows_of_shape(shape)),
      weight_N_(uninitialized("deltapipe::DriftPrediction::row_weights"), encoded_rows(shape)),
      known_N_(uninitialized("deltapipe::DriftPrediction::known"), rows_of_shape(shape)),
      factors_B_("deltapipe::DriftPrediction::factors", (shape.max_samples + 1) / 2 * 2),
      host_factors_B_("deltapipe::DriftPrediction::host_factors", factors_B_.extent(0)),
      rows_N_(uninitialized("deltapipe::DriftPrediction::rows"), encoded_rows(shape)),
      host_rows_N_(uninitialized("deltapipe::DriftPrediction::host_rows"), encoded_rows(shape)),
      fit_(shape.encodes() ? shape.channels : 0) {}

std::size_t DriftPrediction::memory_bytes() const {
  return bytes_of_view(map_) + bytes_of_view(candidate_) + bytes_of_view(weights_CC_) +
         bytes_of_view(m_NC_) + bytes_of_view(p_NC_) + bytes_of_view(inputs_NC_) +
         bytes_of_view(step_N_) + bytes_of_view(weight_N_) + bytes_of_view(known_N_) +
         bytes_of_view(factors_B_) + bytes_of_view(rows_N_) + bytes_of_view(host_rows_N_) +
         fit_.memory_bytes();
}

void DriftPrediction::load_weights(const ExecSpace& exec, const VectorRef<std::uint8_t>& map) {
  for_rows("deltapipe::DriftPrediction::load_weights", row_policy(exec, shape_.channels),
           LoadWeights{ReadMap{map.data(), shape_.channels}, weights_CC_.data()});
}

void DriftPrediction::find_changes(const ExecSpace& exec, const VectorRef<std::uint8_t>& map,
                                   int rows) {
  const ReadMap read{map.data(), shape_.channels};
  const auto largest = static_cast<float>(largest_input(shape_.channels));
  for_rows("deltapipe::DriftPrediction::quantize_inputs", row_policy(exec, rows),
           QuantizeInputs{read, largest, m_NC_.data(), inputs_NC_.data(), step_N_.data()});
  gemm(exec, Transpose::no, Transpose::no, 1.0f, first_rows<const float>(inputs_NC_, rows),
       weights_CC_, 0.0f, first_rows<float>(p_NC_, rows));
  for_rows("deltapipe::DriftPrediction::finish_changes", row_policy(exec, rows),
           FinishChanges{read, step_N_.data(), p_NC_.data()});
}

void DriftPrediction::finish(const ExecSpace& exec, const std::uint16_t* factors, int rows) {
  for_rows("deltapipe::DriftPrediction::add_changes", row_policy(exec, rows),
           AddChanges{shape_.tokens, shape_.channels, factors, m_NC_.data(), p_NC_.data()});
}

DriftPrediction::Sums DriftPrediction::sum_up(const ExecSpace& exec, const float* x, int rows,
                                              bool predicted) {
  for_rows("deltapipe::DriftPrediction::sum_up", row_policy(exec, rows),
           SumUpRows{shape_.channels, x, m_NC_.data(), predicted ? p_NC_.data() : nullptr,
                     known_N_.data(), rows_N_.data()});
  const auto range = Kokkos::make_pair(0, rows);
  Kokkos::deep_copy(exec, Kokkos::subview(host_rows_N_, range), Kokkos::subview(rows_N_, range));
  exec.fence();
  Sums sums;
  for (int first = 0; first < rows; first += shape_.tokens) {
    const auto each_row = [&](const auto& use) {
      for (int n = first; n < first + shape_.tokens; ++n) {
        const DriftRow& row = host_rows_N_(n);
        use(row, static_cast<double>(row.weight) * static_cast<double>(row.weight));
      }
    };
    double product = 0, predicted2 = 0;
    each_row([&](const DriftRow& row, double weight2) {
      product += weight2 * row.product;
      predicted2 += weight2 * row.predicted2;
    });
    // The least squares, unless there is nothing to find.
    const bool found = product > 0 && predicted2 > 0 && std::isfinite(product / predicted2);
    const auto best = static_cast<float>(found ? product / predicted2 : 0.0);
    const std::uint16_t code = step_at_least(std::min(best, kLargestFactor), 1.0f);
    host_factors_B_(first / shape_.tokens) = code;
    const auto factor = static_cast<double>(float_of_step(code));
    each_row([&](const DriftRow& row, double weight2) {
      const double rest2 =
          std::max(0.0, row.change2 - 2 * factor * row.product + factor * factor * row.predicted2);
      sums.change2 += row.change2;
      sums.rest2 += rest2;
      sums.weighted_change2 += weight2 * row.change2;
      sums.weighted_rest2 += weight2 * rest2;
      sums.weight2 += weight2;
      sums.rows += row.weight > 0 ? 1 : 0;
    });
  }
  return sums;
}

/// At equal error a value takes log2 of the ratio of the changes' sizes fewer bits.
double DriftPrediction::saved_bits(double before, double after, double values) {
  if (!(after < before)) return 0;
  return after > 0 ? 0.5 * std::log2(before / after) * values
                   : std::numeric_limits<double>::infinity();
}

/// A map is worth its bytes if as many values as came since the last one save twice as much.
bool DriftPrediction::pays(const Sums& now, const Sums& then) const {
  const double before =
      has_map_ ? std::min(now.weighted_rest2, now.weighted_change2) : now.weighted_change2;
  return saved_bits(before, then.weighted_rest2, values_since_map_) >
         2 * 8.0 * static_cast<double>(map_.extent(0));
}

bool DriftPrediction::is_sound(const ExecSpace& exec, const std::uint8_t* map) const {
  int flaws = 0;
  Kokkos::parallel_reduce("deltapipe::DriftPrediction::check",
                          Kokkos::RangePolicy<ExecSpace>(exec, 0, shape_.channels),
                          CountFlaws{ReadMap{map, shape_.channels}}, flaws);
  return flaws == 0;
}

const float* DriftPrediction::choose(const ExecSpace& exec, const Crossing& crossing,
                                     const float* x, int rows) {
  samples_ = crossing.samples();
  fit_.begin(crossing.step);
  if (has_map_) find_changes(exec, map_, rows);
  sums_ = sum_up(exec, x, rows, has_map_);
  values_since_map_ += static_cast<double>(sums_.rows) * shape_.channels;
  bool refreshes = false;
  if (may_refresh(crossing) && fit_.can_fit() && sums_.weighted_change2 > 0) {
    fit_.fit(exec, weights_CC_, candidate_);
    load_weights(exec, candidate_);
    find_changes(exec, candidate_, rows);
    const Sums then = sum_up(exec, x, rows, true);
    refreshes = pays(sums_, then) && is_sound(exec, candidate_.data());
    if (refreshes) {
      std::swap(map_, candidate_);
      has_map_ = true;
      values_since_map_ = 0;
      sums_ = then;
    } else if (has_map_) {
      load_weights(exec, map_);
      find_changes(exec, map_, rows);
      sums_ = sum_up(exec, x, rows, true);
    }
  }
  const double saved = saved_bits(sums_.weighted_change2, sums_.weighted_rest2,
                                  static_cast<double>(sums_.rows) * shape_.channels);
  const bool predicted =
      refreshes || (has_map_ && saved > 8.0 * static_cast<double>(factor_bytes(samples_)));
  word_ = refreshes ? kNewMap : predicted ? kPredicted : kNone;
  change2_ += sums_.change2;
  rest2_ += predicted ? sums_.rest2 : sums_.change2;
  if (!predicted) return m_NC_.data();
  Kokkos::deep_copy(exec, factors_B_, host_factors_B_);
  finish(exec, factors_B_.data(), rows);
  return p_NC_.data();
}

std::size_t DriftPrediction::append(const ExecSpace& exec, std::uint8_t* payload, std::size_t end) {
  if (word_ == kNewMap) {
    Kokkos::deep_copy(exec, VectorRef<std::uint8_t>(payload + end, map_.extent(0)), map_);
    end += map_.extent(0);
  }
  if (word_ != kNone) {
    const auto* factors = reinterpret_cast<const std::uint8_t*>(factors_B_.data());
    const std::size_t bytes = factor_bytes(samples_);
    Kokkos::deep_copy(exec, VectorRef<std::uint8_t>(payload + end, bytes),
                      VectorRef<const std::uint8_t>(factors, bytes));
    end += bytes;
  }
  return PayloadWord::write(exec, payload, end, word_);
}

void DriftPrediction::learn(const ExecSpace& exec, const float* x, int rows) {
  if (sums_.rows == 0 || fit_.has_enough_of_step()) return;
  for_rows(
      "deltapipe::DriftPrediction::weigh", row_policy(exec, rows),
      WeighRows{shape_.channels, x, rows_N_.data(), m_NC_.data(), p_NC_.data(), weight_N_.data()});
  fit_.add(exec, first_rows<float>(m_NC_, rows), first_rows<float>(p_NC_, rows),
           VectorRef<float>(weight_N_.data(), rows), sums_.weight2, sums_.rows);
}

std::size_t DriftPrediction::read(const ExecSpace& exec, const Crossing& crossing,
                                  const std::uint8_t* payload, std::size_t bytes) {
  const auto refuse = [&](const char* flaw, const std::string& value) {
    RowCodec::refuse(crossing, flaw, value);
  };
  const std::string length = std::to_string(bytes) + " bytes";
  const std::uint32_t word = last_word_.read(exec, crossing, payload, bytes, kNewMap, "prediction");
  const std::size_t end = bytes - PayloadWord::kBytes;
  if (word == kPredicted && !has_map_) refuse("is predicted by a map that has never come", "");
  if (word == kNone) {
    word_ = kNone;
    return bytes - end;
  }
  const std::size_t factors = factor_bytes(crossing.samples());
  if (end < factors) refuse("has no place for the factors of its prediction", length);
  int flaws = 0;
  Kokkos::parallel_reduce(
      "deltapipe::DriftPrediction::check_factors",
      Kokkos::RangePolicy<ExecSpace>(exec, 0, static_cast<int>(crossing.samples())),
      CountLargeFactors{reinterpret_cast<const std::uint16_t*>(payload + end - factors)}, flaws);
  if (flaws > 0) refuse("has factors for prediction that are too large", std::to_string(flaws));
  if (word == kNewMap) {
    if (!may_refresh(crossing) || end < factors + map_.extent(0))
      refuse("has no place for a map of its prediction", length);
    if (!is_sound(exec, payload + end - factors - map_.extent(0)))
      refuse("has a map for prediction with values that are no numbers", "");
  }
  word_ = static_cast<Word>(word);
  factors_end_ = end;
  samples_ = crossing.samples();
  return bytes - end + factors + (word == kNewMap ? map_.extent(0) : 0);
}

const float* DriftPrediction::predict(const ExecSpace& exec, const std::uint8_t* payload,
                                      int rows) {
  if (word_ == kNone) return nullptr;
  const std::uint8_t* factors = payload + factors_end_ - factor_bytes(samples_);
  if (word_ == kNewMap) {
    const std::uint8_t* map = factors - map_.extent(0);
    Kokkos::deep_copy(exec, map_, VectorRef<const std::uint8_t>(map, map_.extent(0)));
    load_weights(exec, map_);
    has_map_ = true;
  }
  find_changes(exec, map_, rows);
  finish(exec, reinterpret_cast<const std::uint16_t*>(factors), rows);
  return p_NC_.data();
}

void DriftPrediction::add_statistics(CodecStatistics& statistics) {
  statistics.change2 += change2_;
  statistics.rest2 += rest2_;
  change2_ = 0;
  rest2_ = 0;
}

void DriftPrediction::write_state(StateWriter& writer, const ExecSpace& exec) const {
  const std::uint64_t bytes = has_map_ ? map_.extent(0) : 0;
  write_scalar(writer, "drift_has_map", static_cast<std::uint8_t>(has_map_));
  write_scalar(writer, "drift_values_since_map", values_since_map_);
  write_view(writer, exec, "drift_map", VectorRef<const std::uint8_t>(map_.data(), bytes), {bytes});
  fit_.write_state(writer, exec);
}

void DriftPrediction::read_state(StateReader& reader, const ExecSpace& exec) {
  has_map_ = read_scalar<std::uint8_t>(reader, "drift_has_map") != 0;
  const std::uint64_t bytes = has_map_ ? map_.extent(0) : 0;
  values_since_map_ = read_scalar<double>(reader, "drift_values_since_map");
  read_view(reader, exec, "drift_map", VectorRef<std::uint8_t>(map_.data(), bytes), {bytes});
  if (has_map_ && !is_sound(exec, map_.data()))
    reader.refuse("drift_map", "has values that are no numbers", "");
  if (has_map_) load_weights(exec, map_);
  fit_.read_state(reader, exec);
}

}  // namespace deltapipe::codec
