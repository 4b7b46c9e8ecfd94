// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/prediction/drift_fit.hpp"

#include <cmath>

#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/row.hpp"
#include "core/base/state/state_views.hpp"
#include "core/codec/prediction/cholesky.hpp"
#include "core/codec/prediction/drift_map.hpp"
#include "core/kernels/gemm/gemm.hpp"

namespace deltapipe::codec {

namespace {

/// Least number of rows per channel.
constexpr double kLeastRowsPerChannel = 1;
/// Relative to the inputs' variance, which is 1 for each channel.
constexpr float kRidge = 0.01f;

/// Mean and deviation of inputs, mean of changes. A channel that hardly varies predicts nothing.
struct FindMoments {
  MatrixRef<const float> gram_CC, sum_m_1C, sum_d_1C;
  float inverse_weight2;
  DriftMap<std::uint8_t> map;
  VectorRef<float> gain_C;

  KOKKOS_INLINE_FUNCTION void operator()(int c) const {
    const float mean = sum_m_1C(0, c) * inverse_weight2;
    const float square = gram_CC(c, c) * inverse_weight2;
    const float variance = square - mean * mean;
    const float gain = variance > 1e-5f * square ? 1.0f / std::sqrt(variance) : 0.0f;
    gain_C(c) = gain;
    map.centre()[c] = mean;
    map.gain()[c] = gain;
    map.shift()[c] = sum_d_1C(0, c) * inverse_weight2;
  }
};

/// Both sides of the regression, for inputs of mean 0 and variance 1.
struct SetUpSystem {
  MatrixRef<const float> gram_CC, cross_CC;
  float inverse_weight2;
  DriftMap<const std::uint8_t> map;
  VectorRef<const float> gain_C;
  MatrixRef<float> matrix_CC, right_CC;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int i = team.league_rank();
    const float mean = map.centre()[i];
    const float gain = gain_C(i);
    row_for(team, map.channels, [&](int j) {
      const float covariance = gram_CC(i, j) * inverse_weight2 - mean * map.centre()[j];
      matrix_CC(i, j) = covariance * gain * gain_C(j) + (i == j ? kRidge : 0.0f);
      const float with_change = cross_CC(i, j) * inverse_weight2 - mean * map.shift()[j];
      right_CC(i, j) = with_change * gain;
    });
  }
};

/// scale and w of a tile of columns; NaN and infinities among the solution's values reach scale.
struct QuantizeColumns {
  MatrixRef<const float> solution_CC;
  DriftMap<std::uint8_t> map;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int n = map.channels;
    const int first = team.league_rank() * kColumnTile;
    const int width = n - first < kColumnTile ? n - first : kColumnTile;
    row_for_synced(team, width, [&](int l) { map.scale()[first + l] = 0.0f; });
    for (int i = 0; i < n; ++i)
      row_for(team, width, [&](int l) {
        const float magnitude = float_of(bits_of(solution_CC(i, first + l)) & 0x7fffffffu);
        float& largest = map.scale()[first + l];
        largest = largest != largest || magnitude <= largest ? largest : magnitude;
      });
    if constexpr (!kHostExecution) team.team_barrier();
    row_for_synced(team, width, [&](int l) { map.scale()[first + l] /= kLargestWeight; });
    for (int i = 0; i < n; ++i)
      row_for(team, width, [&](int l) {
        const int c = first + l;
        const float scale = map.scale()[c];
        const float code = scale > 0.0f ? std::rint(solution_CC(i, c) / scale) : 0.0f;
        map.row(i)[c] =
            static_cast<std::int8_t>(saturate(code, static_cast<float>(kLargestWeight)));
      });
  }
};

Matrix<float> matrix(const char* label, int rows, int columns) {
  return Matrix<float>(uninitialized(label), rows, columns);
}

}  // namespace

DriftFit::DriftFit(int channels)
    : channels_(channels),
      gram_CC_(matrix("deltapipe::DriftFit::gram", channels, channels)),
      cross_CC_(matrix("deltapipe::DriftFit::cross", channels, channels)),
      sum_m_1C_(matrix("deltapipe::DriftFit::sum_of_memories", 1, channels)),
      sum_d_1C_(matrix("deltapipe::DriftFit::sum_of_changes", 1, channels)),
      solution_CC_(matrix("deltapipe::DriftFit::solution", channels, channels)),
      gain_C_(uninitialized("deltapipe::DriftFit::gain"), channels) {}

void DriftFit::add(const ExecSpace& exec, const MatrixRef<float>& m_NC,
                   const MatrixRef<float>& d_NC, const VectorRef<float>& weight_N, double weight2,
                   int rows) {
  const MatrixRef<const float> weight_1N(weight_N.data(), 1, weight_N.extent(0));
  const float fade = window_.fade();
  gemm(exec, Transpose::yes, Transpose::no, 1.0f, m_NC, m_NC, fade, gram_CC_);
  gemm(exec, Transpose::yes, Transpose::no, 1.0f, m_NC, d_NC, fade, cross_CC_);
  gemm(exec, Transpose::no, Transpose::no, 1.0f, weight_1N, m_NC, fade, sum_m_1C_);
  gemm(exec, Transpose::no, Transpose::no, 1.0f, weight_1N, d_NC, fade, sum_d_1C_);
  window_.add(rows, weight2);
}

bool DriftFit::can_fit() const {
  return window_.has_rows() && window_.rows() >= kLeastRowsPerChannel * channels_;
}

void DriftFit::fit(const ExecSpace& exec, const MatrixRef<float>& work_CC,
                   const VectorRef<std::uint8_t>& map) {
  const auto inverse = static_cast<float>(1 / window_.unfaded_weight2());
  const DriftMap<std::uint8_t> written{map.data(), channels_};
  const DriftMap<const std::uint8_t> read{map.data(), channels_};
  for_range("deltapipe::DriftFit::moments", exec, channels_,
            FindMoments{gram_CC_, sum_m_1C_, sum_d_1C_, inverse, written, gain_C_});
  for_rows("deltapipe::DriftFit::system", row_policy(exec, channels_),
           SetUpSystem{gram_CC_, cross_CC_, inverse, read, gain_C_, work_CC, solution_CC_});
  cholesky_solve(exec, work_CC, solution_CC_);
  for_rows("deltapipe::DriftFit::quantize", column_policy(exec, channels_),
           QuantizeColumns{solution_CC_, written});
}

std::size_t DriftFit::memory_bytes() const {
  return bytes_of_view(gram_CC_) + bytes_of_view(cross_CC_) + bytes_of_view(sum_m_1C_) +
         bytes_of_view(sum_d_1C_) + bytes_of_view(solution_CC_) + bytes_of_view(gain_C_);
}

void DriftFit::write_state(StateWriter& writer, const ExecSpace& exec) const {
  const std::uint64_t channels = channels_;
  const std::uint64_t rows = window_.rows() > 0 ? channels : 0;
  const auto write = [&](const char* name, const Matrix<float>& sums, std::uint64_t extent) {
    write_view(writer, exec, name, VectorRef<const float>(sums.data(), extent * channels),
               {extent, channels});
  };
  window_.write_state(writer, "drift_");
  write("drift_gram", gram_CC_, rows);
  write("drift_cross", cross_CC_, rows);
  write("drift_sum_of_memories", sum_m_1C_, rows > 0 ? 1 : 0);
  write("drift_sum_of_changes", sum_d_1C_, rows > 0 ? 1 : 0);
}

void DriftFit::read_state(StateReader& reader, const ExecSpace& exec) {
  window_.read_state(reader, "drift_");
  const std::uint64_t channels = channels_;
  const std::uint64_t rows = window_.rows() > 0 ? channels : 0;
  const auto read = [&](const char* name, const Matrix<float>& sums, std::uint64_t extent) {
    read_view(reader, exec, name, VectorRef<float>(sums.data(), extent * channels),
              {extent, channels});
  };
  read("drift_gram", gram_CC_, rows);
  read("drift_cross", cross_CC_, rows);
  read("drift_sum_of_memories", sum_m_1C_, rows > 0 ? 1 : 0);
  read("drift_sum_of_changes", sum_d_1C_, rows > 0 ? 1 : 0);
}

}  // namespace deltapipe::codec
