// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/prediction/klt_transform.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "core/base/numeric/number_formats.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/row.hpp"
#include "core/base/state/state_views.hpp"
#include "core/codec/rows/quantize_row.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/kernels/gemm/gemm.hpp"
#include "core/kernels/layers/column_sums.hpp"

namespace deltapipe::codec {

namespace {

using ReadBasis = KltBasis<const std::uint8_t>;

/// Least number of rows per channel that a basis is found from.
constexpr double kLeastRowsPerChannel = 1;
/// Bits per value that a basis has to save: less is within what estimates err by.
constexpr double kLeastSaved = 0.02;
/// Part of the square of what steps err by that may be lost to the rounding of a basis.
constexpr double kMostLost = 0.05;

/// analysis: null where there is none.
struct LoadBasis {
  ReadBasis basis;
  float* synthesis_CC;
  float* analysis_CC;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int j = team.league_rank();
    const std::size_t first = static_cast<std::size_t>(j) * basis.channels;
    const std::int8_t* from = basis.row(j);
    const float scale = basis.scale()[j];
    float* synthesis = synthesis_CC + first;
    float* analysis = analysis_CC + first;
    const bool analyzes = analysis_CC != nullptr;
    row_for(team, basis.channels, [=](int i) {
      const auto value = static_cast<float>(from[i]);
      synthesis[i] = value;
      if (analyzes) analysis[i] = value * scale;
    });
  }
};

/// The square of a column's value in a row with its weight.
struct WeightedSquare {
  int channels;
  const float* values_NC;
  const float* weight_N;

  KOKKOS_INLINE_FUNCTION float operator()(int row, int c) const {
    if (weight_N[row] == 0.0f) return 0.0f;
    const float value = values_NC[static_cast<std::size_t>(row) * channels + c] * weight_N[row];
    return value * value;
  }
};

struct Store {
  float* sum_C;

  KOKKOS_INLINE_FUNCTION void operator()(int c, float sum) const { sum_C[c] = sum; }
};

/// squares(row) := sum of the squares of a row with its weight, of r or, with sums, of what these
/// stand for less r.
struct SumRows {
  int channels;
  const float* r_NC;
  const float* sums_NC;  ///< of products with the basis, or null
  const float* scale;
  const float* weight_N;
  float* squares_N;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int row = team.league_rank();
    const std::size_t first = static_cast<std::size_t>(row) * channels;
    const float* r = r_NC + first;
    const float* sums = sums_NC == nullptr ? nullptr : sums_NC + first;
    const float* scales = scale;
    const float weight = weight_N[row];
    float sum = 0;
    if (weight != 0.0f)
      sum = row_sum<float>(team, channels, [=](int c) {
        const float value = (sums == nullptr ? r[c] : sums[c] * scales[c] - r[c]) * weight;
        return value * value;
      });
    float* squares = squares_N;
    row_once(team, [=]() { squares[row] = sum; });
  }
};

/// Rows times their weights.
struct WeighChanges {
  int channels;
  const float* weight_N;
  float* r_NC;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int row = team.league_rank();
    const float weight = weight_N[row];
    float* r = r_NC + static_cast<std::size_t>(row) * channels;
    row_for(team, channels, [=](int c) { r[c] = weight == 0.0f ? 0.0f : r[c] * weight; });
  }
};

/// Adds 1 for each scale that is no number, and for each value that is too large.
struct CountFlaws {
  ReadBasis basis;
  int largest;

  KOKKOS_INLINE_FUNCTION void operator()(int j, int& flaws) const {
    flaws += is_nonfinite(basis.scale()[j]);
    const std::int8_t* values = basis.row(j);
    for (int i = 0; i < basis.channels; ++i)
      flaws += values[i] > largest || values[i] < -largest ? 1 : 0;
  }
};

/// Adds the number of values of a row that are not finite.
struct CountNonfinite {
  const float* values_CC;
  int channels;

  KOKKOS_INLINE_FUNCTION void operator()(int row, int& flaws) const {
    const float* values = values_CC + static_cast<std::size_t>(row) * channels;
    for (int c = 0; c < channels; ++c) flaws += is_nonfinite(values[c]);
  }
};

Matrix<float> matrix(const char* label, std::size_t rows, std::size_t columns) {
  return Matrix<float>(uninitialized(label), rows, columns);
}

std::size_t rows_of(const CodecShape& shape) {
  return static_cast<std::size_t>(shape.max_samples) * shape.tokens;
}

/// Of what only a sender needs.
std::size_t encoded(const CodecShape& shape, std::size_t extent) {
  return shape.encodes() ? extent : 0;
}

}  // namespace

KltTransform::KltTransform(const CodecShape& shape, int interval)
    : shape_(shape),
      interval_(interval),
      // Zeros: their padding travels.
      basis_("deltapipe::KltTransform::basis", KltBasis<std::uint8_t>::size(shape.channels)),
      candidate_("deltapipe::KltTransform::candidate", encoded(shape, basis_.extent(0))),
      host_candidate_("deltapipe::KltTransform::host_candidate", candidate_.extent(0)),
      synthesis_CC_(matrix("deltapipe::KltTransform::synthesis", shape.channels, shape.channels)),
      analysis_CC_(matrix("deltapipe::KltTransform::analysis", encoded(shape, shape.channels),
                          shape.channels)),
      r_NC_(matrix("deltapipe::KltTransform::changes", encoded(shape, rows_of(shape)),
                   shape.channels)),
      z_NC_(matrix("deltapipe::KltTransform::components", rows_of(shape), shape.channels)),
      sums_NC_(matrix("deltapipe::KltTransform::sums", rows_of(shape), shape.channels)),
      weight_N_(uninitialized("deltapipe::KltTransform::weights"), encoded(shape, rows_of(shape))),
      fit_weight_N_(uninitialized("deltapipe::KltTransform::fit_weights"),
                    encoded(shape, rows_of(shape))),
      row_N_(uninitialized("deltapipe::KltTransform::rows"), rows_of(shape)),
      host_row_N_(Kokkos::create_mirror_view(StagingSpace(), row_N_)),
      squares_(uninitialized("deltapipe::KltTransform::squares"),
               encoded(shape, std::max<std::size_t>(rows_of(shape), shape.channels))),
      host_squares_(uninitialized("deltapipe::KltTransform::host_squares"), squares_.extent(0)),
      moments_CC_(matrix("deltapipe::KltTransform::moments", encoded(shape, shape.channels),
                         shape.channels)),
      eigen_(static_cast<int>(encoded(shape, shape.channels))) {}

std::size_t KltTransform::memory_bytes() const {
  const bool mirrored = !std::is_same_v<MemSpace, StagingSpace>;
  return bytes_of_view(basis_) + bytes_of_view(candidate_) + bytes_of_view(host_candidate_) +
         bytes_of_view(synthesis_CC_) + bytes_of_view(analysis_CC_) + bytes_of_view(r_NC_) +
         bytes_of_view(z_NC_) + bytes_of_view(sums_NC_) + bytes_of_view(weight_N_) +
         bytes_of_view(fit_weight_N_) + bytes_of_view(row_N_) * (mirrored ? 2 : 1) +
         bytes_of_view(squares_) + bytes_of_view(host_squares_) + bytes_of_view(moments_CC_) +
         eigen_.memory_bytes();
}

void KltTransform::set_rows(const ExecSpace& exec, const std::vector<std::int32_t>& rows) {
  exec.fence();  // of what still reads those of the crossing before
  count_ = static_cast<int>(rows.size());
  std::copy(rows.begin(), rows.end(), host_row_N_.data());
  if constexpr (!std::is_same_v<MemSpace, StagingSpace>) {
    const auto range = Kokkos::make_pair(std::size_t{0}, rows.size());
    Kokkos::deep_copy(exec, Kokkos::subview(row_N_, range), Kokkos::subview(host_row_N_, range));
  }
}

void KltTransform::load(const ExecSpace& exec, const VectorRef<std::uint8_t>& basis) {
  for_rows("deltapipe::KltTransform::load", row_policy(exec, channels()),
           LoadBasis{ReadBasis{basis.data(), channels()}, synthesis_CC_.data(),
                     shape_.encodes() ? analysis_CC_.data() : nullptr});
}

void KltTransform::analyze(const ExecSpace& exec, int rows) {
  gemm(exec, Transpose::no, Transpose::no, 1.0f, first_rows<const float>(r_NC_, rows), analysis_CC_,
       0.0f, first_rows<float>(z_NC_, rows));
}

bool KltTransform::fit(const ExecSpace& exec) {
  const int n = channels();
  const HostVector<float> vectors = eigen_.matrix();
  Kokkos::deep_copy(exec, vectors, VectorRef<float>(moments_CC_.data(), moments_CC_.size()));
  exec.fence();
  if (!eigen_.solve()) return false;
  const auto largest = static_cast<float>(largest_basis_value(n));
  const KltBasis<std::uint8_t> written{host_candidate_.data(), n};
  for (int j = 0; j < n; ++j) {
    // The last eigenvector has the largest eigenvalue.
    const auto value = [&](int i) { return vectors(static_cast<std::size_t>(n - 1 - i) * n + j); };
    float most = 0;
    for (int i = 0; i < n; ++i) {
      if (!std::isfinite(value(i))) return false;
      most = std::max(most, std::abs(value(i)));
    }
    const float scale = most / largest;
    written.scale()[j] = scale;
    for (int i = 0; i < n; ++i)
      written.row(j)[i] = static_cast<std::int8_t>(scale > 0 ? std::rint(value(i) / scale) : 0.0f);
  }
  Kokkos::deep_copy(exec, candidate_, host_candidate_);
  return true;
}

namespace {

/// Mean over groups of equally many values, of these sums of squares. Of normal values of variance
/// v, in steps of D: 1/2 log2(2 pi e v / D^2) if that is many.
double bits_of(const HostVector<float>& squares, int groups) {
  double sum = 0;
  int counted = 0;
  for (int g = 0; g < groups; ++g) {
    sum += squares(g);
    counted += squares(g) > 0 ? 1 : 0;
  }
  if (!(sum > 0)) return 0;
  constexpr double kNormal = 17.08;
  double bits = 0;
  for (int g = 0; g < groups; ++g)
    bits += 0.5 * std::log2(1 + kNormal * counted * squares(g) / sum);
  return bits / counted;
}

}  // namespace

double KltTransform::bits_of_changes(const ExecSpace& exec, int rows) {
  for_rows(
      "deltapipe::KltTransform::sum_rows", row_policy(exec, rows),
      SumRows{channels(), r_NC_.data(), nullptr, nullptr, fit_weight_N_.data(), squares_.data()});
  Kokkos::deep_copy(exec, host_squares_, squares_);
  exec.fence();
  return bits_of(host_squares_, rows);
}

double KltTransform::bits_of_components(const ExecSpace& exec, int rows) {
  sum_columns<float>(
      "deltapipe::KltTransform::sum_columns", exec, rows, channels(), VectorRef<float>(),
      WeightedSquare{channels(), z_NC_.data(), fit_weight_N_.data()}, Store{squares_.data()});
  Kokkos::deep_copy(exec, host_squares_, squares_);
  exec.fence();
  return bits_of(host_squares_, channels());
}

double KltTransform::lost_part(const ExecSpace& exec, int rows) {
  const float* sums = synthesize(exec, rows);
  const ReadBasis basis{candidate_.data(), channels()};
  double part[2];
  for (const bool rest : {false, true}) {
    for_rows("deltapipe::KltTransform::sum_rows", row_policy(exec, rows),
             SumRows{channels(), r_NC_.data(), rest ? sums : nullptr, basis.scale(),
                     fit_weight_N_.data(), squares_.data()});
    Kokkos::deep_copy(exec, host_squares_, squares_);
    exec.fence();
    part[rest ? 1 : 0] = std::accumulate(host_squares_.data(), host_squares_.data() + rows, 0.0);
  }
  return part[0] > 0 ? part[1] / part[0] : 0;
}

bool KltTransform::keeps_errors(double rms_step, double lost) const {
  // A row may be one component, sqrt(C) root mean squares, which levels must reach.
  const bool has_levels = rms_step * kRmsLevels >= std::sqrt(static_cast<double>(channels()));
  return has_levels && lost <= kMostLost * rms_step * rms_step / 12;
}

float* KltTransform::choose(const ExecSpace& exec, const Crossing& crossing, int rows,
                            double rms_step) {
  window_.begin(crossing.step, channels());
  values_since_ += static_cast<double>(count_) * channels();
  const bool tries = may_refresh(crossing) && window_.has_rows() &&
                     window_.rows() >= kLeastRowsPerChannel * channels();
  word_ = kNone;
  if (!has_basis_ && !tries) return nullptr;
  double bits = bits_of_changes(exec, rows);
  if (has_basis_) {
    analyze(exec, rows);
    const double transformed = bits_of_components(exec, rows);
    if (transformed < bits && keeps_errors(rms_step, lost_)) {
      word_ = kTransformed;
      bits = transformed;
    }
  }
  if (tries && fit(exec)) {
    load(exec, candidate_);
    analyze(exec, rows);
    const double saved = bits - bits_of_components(exec, rows);
    // Worth its bytes if as many values as came since the last one save twice as much.
    const double cost = 2 * 8.0 * static_cast<double>(basis_.extent(0));
    const bool pays = saved > kLeastSaved && saved * values_since_ > cost;
    const double lost = pays ? lost_part(exec, rows) : 0;
    if (pays && keeps_errors(rms_step, lost) && is_sound(exec, candidate_.data())) {
      std::swap(basis_, candidate_);
      has_basis_ = true;
      values_since_ = 0;
      lost_ = lost;
      word_ = kNewBasis;
    } else if (has_basis_) {
      load(exec, basis_);
      if (word_ == kTransformed) analyze(exec, rows);
    }
  }
  return word_ == kNone ? nullptr : z_NC_.data();
}

const float* KltTransform::synthesize(const ExecSpace& exec, int rows) {
  gemm(exec, Transpose::no, Transpose::yes, 1.0f, first_rows<const float>(z_NC_, rows),
       synthesis_CC_, 0.0f, first_rows<float>(sums_NC_, rows));
  return sums_NC_.data();
}

void KltTransform::learn(const ExecSpace& exec, int rows) {
  if (count_ == 0 || window_.has_enough_of_step(channels())) return;
  for_rows("deltapipe::KltTransform::weigh", row_policy(exec, rows),
           WeighChanges{channels(), fit_weight_N_.data(), r_NC_.data()});
  const MatrixRef<float> weighted = first_rows<float>(r_NC_, rows);
  gemm(exec, Transpose::yes, Transpose::no, 1.0f, weighted, weighted, window_.fade(), moments_CC_);
  window_.add(count_, count_);
}

std::size_t KltTransform::append(const ExecSpace& exec, std::uint8_t* payload, std::size_t end) {
  if (word_ == kNewBasis) {
    Kokkos::deep_copy(exec, VectorRef<std::uint8_t>(payload + end, basis_.extent(0)), basis_);
    end += basis_.extent(0);
  }
  return PayloadWord::write(exec, payload, end, word_);
}

bool KltTransform::is_sound(const ExecSpace& exec, const std::uint8_t* basis) const {
  int flaws = 0;
  Kokkos::parallel_reduce(
      "deltapipe::KltTransform::check", Kokkos::RangePolicy<ExecSpace>(exec, 0, channels()),
      CountFlaws{ReadBasis{basis, channels()}, largest_basis_value(channels())}, flaws);
  return flaws == 0;
}

std::size_t KltTransform::read(const ExecSpace& exec, const Crossing& crossing,
                               const std::uint8_t* payload, std::size_t bytes) {
  const auto refuse = [&](const char* flaw, const std::string& value) {
    RowCodec::refuse(crossing, flaw, value);
  };
  const std::string length = std::to_string(bytes) + " bytes";
  const std::uint32_t word =
      last_word_.read(exec, crossing, payload, bytes, kNewBasis, "transform");
  const std::size_t end = bytes - PayloadWord::kBytes;
  if (word == kTransformed && !has_basis_) refuse("is in a basis that has never come", "");
  std::size_t taken = PayloadWord::kBytes;
  if (word == kNewBasis) {
    if (!may_refresh(crossing)) refuse("has a basis for its transform, which its step has not", "");
    if (end < basis_.extent(0)) refuse("has no place for the basis of its transform", length);
    if (!is_sound(exec, payload + end - basis_.extent(0)))
      refuse("has a basis for its transform with scales that are not finite or values out of range",
             "");
    taken += basis_.extent(0);
  }
  word_ = static_cast<Word>(word);
  end_ = end;
  return taken;
}

float* KltTransform::adopt(const ExecSpace& exec, const std::uint8_t* payload) {
  if (word_ == kNewBasis) {
    Kokkos::deep_copy(
        exec, basis_,
        VectorRef<const std::uint8_t>(payload + end_ - basis_.extent(0), basis_.extent(0)));
    load(exec, basis_);
    has_basis_ = true;
  }
  Kokkos::deep_copy(exec, z_NC_, 0.0f);
  return z_NC_.data();
}

void KltTransform::write_state(StateWriter& writer, const ExecSpace& exec) const {
  const std::uint64_t bytes = has_basis_ ? basis_.extent(0) : 0;
  write_scalar(writer, "klt_has_basis", static_cast<std::uint8_t>(has_basis_));
  write_scalar(writer, "klt_values_since_basis", values_since_);
  write_scalar(writer, "klt_lost", lost_);
  write_view(writer, exec, "klt_basis", VectorRef<const std::uint8_t>(basis_.data(), bytes),
             {bytes});
  window_.write_state(writer, "klt_");
  const std::uint64_t rows = window_.has_rows() ? moments_CC_.extent(0) : 0;
  const std::uint64_t columns = shape_.channels;
  write_view(writer, exec, "klt_moments",
             VectorRef<const float>(moments_CC_.data(), rows * columns), {rows, columns});
}

void KltTransform::read_state(StateReader& reader, const ExecSpace& exec) {
  has_basis_ = read_scalar<std::uint8_t>(reader, "klt_has_basis") != 0;
  values_since_ = read_scalar<double>(reader, "klt_values_since_basis");
  lost_ = read_scalar<double>(reader, "klt_lost");
  const std::uint64_t bytes = has_basis_ ? basis_.extent(0) : 0;
  read_view(reader, exec, "klt_basis", VectorRef<std::uint8_t>(basis_.data(), bytes), {bytes});
  if (has_basis_ && !is_sound(exec, basis_.data()))
    reader.refuse("klt_basis", "has scales that are not finite or values out of range", "");
  if (has_basis_) load(exec, basis_);
  window_.read_state(reader, "klt_");
  const std::uint64_t rows = window_.has_rows() ? moments_CC_.extent(0) : 0;
  const std::uint64_t columns = shape_.channels;
  read_view(reader, exec, "klt_moments", VectorRef<float>(moments_CC_.data(), rows * columns),
            {rows, columns});
  int flaws = 0;
  Kokkos::parallel_reduce("deltapipe::KltTransform::check_moments",
                          Kokkos::RangePolicy<ExecSpace>(exec, 0, static_cast<int>(rows)),
                          CountNonfinite{moments_CC_.data(), shape_.channels}, flaws);
  if (flaws > 0) reader.refuse("klt_moments", "has values that are not finite", "");
}

}  // namespace deltapipe::codec
