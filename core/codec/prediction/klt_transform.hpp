// SPDX-License-Identifier: BSD-3-Clause
// Karhunen-Loeve transform of changes: most of what a boundary's changes have in common lies in few
// directions of the channels. The sender finds the eigenvectors of the changes' second moments and
// sends them from time to time, if that pays; both ends count changes in their components, whose
// codes are sorted by component, so that entropy coding finds those that hardly vary.
//
// The last word of a payload says whether its changes are components; a new basis stands before it
// where it says so. Crossings without such changes have no such word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/codec/codec.hpp"
#include "core/codec/prediction/fading_window.hpp"
#include "core/codec/prediction/klt_basis.hpp"
#include "core/codec/prediction/symmetric_eigen.hpp"
#include "core/codec/wire/payload_word.hpp"

namespace deltapipe::codec {

/// The rows of a crossing whose changes may be components: rows of the micro-batch, in their order.
struct TransformedRows {
  const std::int32_t* row_N;
  int count;

  /// Among levels_NC, the place of code c in the v-th row of codes: they travel by component.
  KOKKOS_INLINE_FUNCTION std::size_t level(int v, int c, int channels) const {
    const std::size_t j = static_cast<std::size_t>(v) * channels + c;
    return static_cast<std::size_t>(row_N[j % count]) * channels + j / count;
  }
};

/// One end's. For a crossing, a sender calls set_rows, choose, synthesize, learn and append, a
/// receiver read, set_rows, adopt and synthesize.
class KltTransform {
 public:
  KltTransform(const CodecShape& shape, int interval);

  /// Most bytes at the end of a payload with changes.
  std::size_t most_bytes(const Crossing& crossing) const {
    return PayloadWord::kBytes + (may_refresh(crossing) ? basis_.extent(0) : 0);
  }
  std::size_t most_bytes() const { return PayloadWord::kBytes + basis_.extent(0); }
  std::size_t memory_bytes() const;

  void set_rows(const ExecSpace& exec, const std::vector<std::int32_t>& rows);
  TransformedRows rows() const { return {row_N_.data(), count_}; }

  /// To be filled before choose: changes of all rows, zeros in those that are not transformed; the
  /// root mean squares of what they are changes of; and 1 / these for rows that the fit counts,
  /// else 0.
  MatrixRef<float> changes() const { return r_NC_; }
  VectorRef<float> weights() const { return weight_N_; }
  VectorRef<float> fit_weights() const { return fit_weight_N_; }
  /// Returns the components of the changes of so many rows, which are to be sent in steps of
  /// rms_step; the caller may overwrite them. Null: changes are sent as they are. Waits.
  float* choose(const ExecSpace& exec, const Crossing& crossing, int rows, double rms_step);
  /// Takes note of changes().
  void learn(const ExecSpace& exec, int rows);
  /// Writes the payload's end behind `end` bytes, a multiple of 4; returns its length.
  std::size_t append(const ExecSpace& exec, std::uint8_t* payload, std::size_t end);

  /// Bytes of the payload's end. UserError, before anything changes, when it cannot be one. Waits.
  std::size_t read(const ExecSpace& exec, const Crossing& crossing, const std::uint8_t* payload,
                   std::size_t bytes);
  /// A basis has been sent so far.
  bool has_basis() const { return has_basis_; }
  /// Whether the payload that was read last has components.
  bool transforms() const { return word_ != kNone; }
  /// Takes the basis of the payload that was read last, if it has one; returns what levels of so
  /// many rows are to be written to.
  float* adopt(const ExecSpace& exec, const std::uint8_t* payload);

  /// Sums of products of the rows' levels, which stand where choose or adopt said, with the basis.
  const float* synthesize(const ExecSpace& exec, int rows);
  const float* scale() const {
    return KltBasis<const std::uint8_t>{basis_.data(), channels()}.scale();
  }

  void write_state(StateWriter& writer, const ExecSpace& exec) const;
  void read_state(StateReader& reader, const ExecSpace& exec);

 private:
  enum Word : std::uint32_t { kNone, kTransformed, kNewBasis };

  int channels() const { return shape_.channels; }
  bool may_refresh(const Crossing& crossing) const {
    return crossing.micro_batch == 0 && crossing.step % interval_ == 0;
  }
  /// Loads the basis' values for synthesis and, at senders, analysis.
  void load(const ExecSpace& exec, const VectorRef<std::uint8_t>& basis);
  /// z_NC_ := components of changes by the basis that is loaded.
  void analyze(const ExecSpace& exec, int rows);
  /// Writes the basis of the window's moments to candidate_; false: there is none.
  bool fit(const ExecSpace& exec);
  /// Bits that a value takes, about, in steps as large as the root mean square of all: of changes
  /// as they are, where rows of a size share a table, and of components, where those of a size do.
  double bits_of_changes(const ExecSpace& exec, int rows);
  double bits_of_components(const ExecSpace& exec, int rows);
  /// Part of the changes' squares that the basis, as it is rounded, does not have.
  double lost_part(const ExecSpace& exec, int rows);
  bool is_sound(const ExecSpace& exec, const std::uint8_t* basis) const;
  /// Whether components in such steps err by what changes as they are would, with a basis that
  /// loses so much.
  bool keeps_errors(double rms_step, double lost) const;

  const CodecShape shape_;
  const std::uint64_t interval_;
  bool has_basis_ = false;
  Word word_ = kNone;        ///< of the crossing at hand
  std::size_t end_ = 0;      ///< of the basis in a payload that was read
  int count_ = 0;            ///< rows of the crossing at hand
  double values_since_ = 0;  ///< that were sent as changes since the last basis
  double lost_ = 0;          ///< lost_part() of the basis, when it was found

  Vector<std::uint8_t> basis_, candidate_;
  HostVector<std::uint8_t> host_candidate_;
  Matrix<float> synthesis_CC_, analysis_CC_;
  Matrix<float> r_NC_, z_NC_;
  Matrix<float> sums_NC_;
  Vector<float> weight_N_, fit_weight_N_;
  Vector<std::int32_t> row_N_;
  HostVector<std::int32_t> host_row_N_;
  Vector<float> squares_;  ///< of each row or each column
  HostVector<float> host_squares_;
  PayloadWord last_word_;
  FadingWindow window_;
  Matrix<float> moments_CC_;
  SymmetricEigen eigen_;
};

}  // namespace deltapipe::codec
