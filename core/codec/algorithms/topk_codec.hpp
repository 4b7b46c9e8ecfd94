// SPDX-License-Identifier: BSD-3-Clause
// Base of codecs that send chosen values with their positions (algorithms/topk.cpp,
// algorithms/aqsgd_topk.cpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/error.hpp"
#include "core/codec/algorithms/ef_mixed.hpp"
#include "core/codec/algorithms/error_bound.hpp"
#include "core/codec/algorithms/first_visit.hpp"
#include "core/codec/topk/sparse_payload.hpp"
#include "core/codec/topk/sparse_rows.hpp"

namespace deltapipe::codec {

/// Records of the ends: none, errors at the sender, or the same memory at both ends.
enum class Keeps { nothing, errors, memory };
inline RowFormat sparse_format(bool uses_memory) {
  RowFormat format;
  format.kind = RowKind::sparse;
  format.uses_memory = uses_memory;
  return format;
}

inline RowFormats sparse_formats(const CodecSettings& settings, int channels, Keeps keeps) {
  RowFormats formats;
  formats.format[kFirstVisit] = sparse_format(false);
  formats.format[kLaterVisit] = sparse_format(keeps != Keeps::nothing);
  if (keeps == Keeps::memory && settings.first_visit != FirstVisit::zero)
    formats.format[kFirstVisit] = first_visit_format(settings, channels);
  return formats;
}

/// M is the type of the records' rows: errors or memories.
template <class M, Keeps keeps>
class TopKCodec final
    : public QuantizedCodec<std::conditional_t<keeps == Keeps::memory, M, NoMemory>> {
  using Base = QuantizedCodec<std::conditional_t<keeps == Keeps::memory, M, NoMemory>>;
  using RowCodec::samples;
  using RowCodec::shape_;

 public:
  TopKCodec(const CodecSettings& settings, const CodecShape& shape, MemoryStorage storage)
      : Base(shape, settings_hash(settings, shape, storage, 1),
             sparse_formats(settings, shape.channels, keeps)),
        part_(settings.topk),
        follows_(follows_forward(settings)),
        mixes_(keeps == Keeps::errors && settings.feedback_kind == FeedbackKind::mixed),
        values_(ValueCoding::of(settings)),
        record_bytes_(keeps == Keeps::nothing ? 0 : record_bytes_of<M>(shape)),
        most_(count_of_part(part_, values_of_sample())),
        selection_(shape.encodes() ? shape.max_samples : 0, values_of(1)),
        chosen_(shape.max_samples, most_),
        y_(uninitialized("deltapipe::TopKCodec::values"),
           shape.encodes() ? values_of(shape.max_samples) : 0),
        group_B_(uninitialized("deltapipe::TopKCodec::groups"), shape.max_samples),
        block_B_(uninitialized("deltapipe::TopKCodec::blocks"), shape.max_samples),
        sent_(uninitialized("deltapipe::TopKCodec::sent"),
              shape.decodes() || !mixes_ ? shape.max_samples * most_ : 0),
        result_("deltapipe::TopKCodec::result", 2),
        host_result_("deltapipe::TopKCodec::host_result", 2) {
    if constexpr (keeps == Keeps::errors) bound_.emplace(shape, 1 / settings.topk);
    if (mixes_ && shape.encodes()) mixed_.emplace(shape, most_);
  }

  bool waits() const override { return true; }
  void share(std::shared_ptr<ForwardMasks> masks) override {
    masks_ = std::move(masks);
    if (!follows_ || !masks_) return;
    const std::size_t most =
        std::max<std::size_t>(most_, count_of_part(masks_->part(), values_of_sample()));
    chosen_ = PositionLists(shape_.max_samples, most);
    sent_ = Vector<float>(uninitialized("deltapipe::TopKCodec::sent"), shape_.max_samples * most);
  }
  RecordLayout record() const override {
    if (keeps == Keeps::errors) return {.sender_bytes = record_bytes_};
    if (keeps == Keeps::memory) return {.shared_bytes = record_bytes_};
    return {};
  }
  std::size_t max_payload_bytes() const override {
    std::size_t largest = 0;
    for (int f = 0; f < RowFormats::kCount; ++f)
      largest = std::max(largest, round_up(block_bytes(f, shape_.tokens), 4));
    return shape_.max_samples * (sizeof(SampleHeader) + largest);
  }
  std::size_t memory_bytes() const override {
    return Base::memory_bytes() + selection_.memory_bytes() + chosen_.memory_bytes() +
           bytes_of_view(y_) + bytes_of_view(sent_) + bytes_of_view(group_B_) +
           (bound_ ? bound_->memory_bytes() : 0) + (mixed_ ? mixed_->memory_bytes() : 0) +
           bytes_of_view(block_B_) + bytes_of_view(result_) + bytes_of_view(host_result_) +
           (follows_ && masks_ ? masks_->memory_bytes() : 0);
  }

 private:
  std::size_t values_of(int count) const {
    return static_cast<std::size_t>(count) * shape_.tokens * shape_.channels;
  }
  std::uint32_t values_of_sample() const { return static_cast<std::uint32_t>(values_of(1)); }
  bool is_sparse(int format) const {
    return Base::formats().format[format].kind == RowKind::sparse;
  }

  /// Formats of errors are the same on the wire, so that the receiver need not know the visits.
  int format_of(const Crossing& crossing, std::size_t b) const override {
    return keeps == Keeps::nothing || crossing.visits[b] == 0 ? kFirstVisit : kLaterVisit;
  }
  bool has_fixed_length(int format) const override { return !is_sparse(format); }
  std::size_t block_bytes(int format, int tokens) const override {
    if (!is_sparse(format)) return Base::block_bytes(format, tokens);
    if (tokens == 0) return 0;
    const auto size =
        static_cast<std::uint32_t>(tokens) * static_cast<std::uint32_t>(shape_.channels);
    const std::uint32_t most = count_of_part(part_, size);
    const std::size_t own =
        std::size_t{4} * max_position_words(most, size) + values_.bytes_of(most);
    if (!follows_ || !masks_) return own;
    const std::uint64_t forward = values_.bytes_of(count_of_part(masks_->part(), size));
    return std::max<std::size_t>(own, forward);
  }
  std::size_t front_bytes(const Crossing& crossing) const override {
    for (std::size_t b = 0; b < crossing.samples(); ++b)
      if (is_sparse(format_of(crossing, b))) return sizeof(SampleHeader) * crossing.samples();
    return 0;
  }
  int sparse_samples() const {
    int count = 0;
    for (const SampleEntry& sample : samples()) count += is_sparse(sample.format) ? 1 : 0;
    return count;
  }
  bool has_dense_samples() const { return sparse_samples() < static_cast<int>(samples().size()); }
  /// Returns the start of the first sparse sample's block.
  std::size_t sparse_begin() const {
    std::size_t begin = sizeof(SampleHeader) * samples().size();
    for (const SampleEntry& sample : samples())
      if (!is_sparse(sample.format))
        begin += round_up(Base::block_bytes(sample.format, sample.tokens), 4);
    return begin;
  }
  SparseArguments sparse(const RowArguments& arguments) const {
    return {arguments,  Base::formats(), values_,  part_,
            positions_, is_held_,        forward_, block_B_.data()};
  }
  int value_rows() const {
    const std::size_t most = chosen_.view().stride;
    return static_cast<int>(ValueCoding::rows_of(static_cast<std::uint32_t>(most)));
  }
  /// Finds the storage of the crossing's positions.
  void find_positions() {
    DELTAPIPE_ASSERT(!follows_ || masks_, "gradients have no positions to follow");
    const Crossing& crossing = RowCodec::crossing();
    positions_ = chosen_.view();
    forward_ = {};
    forward_has_all_ = false;
    is_held_ = masks_ && !follows_ && crossing.training;
    if (is_held_) positions_ = masks_->hold(crossing, !has_dense_samples());
    if (!follows_) return;
    const auto mask = masks_->find(crossing);
    if (!mask) return;
    forward_ = mask->positions;
    forward_has_all_ = mask->of_all;
  }
  void release_positions() {
    if (follows_) masks_->release(RowCodec::crossing());
  }

  std::size_t run_encode(const ExecSpace& exec, const RowArguments& a,
                         std::size_t max_bytes) override {
    if (has_dense_samples()) Base::run_encode(exec, a, max_bytes);
    if (sparse_samples() == 0) return max_bytes;
    find_positions();
    RowArguments bounded = a;
    if constexpr (keeps == Keeps::errors)
      bounded.error_share = bound_->template shares<M>(exec, a, Base::formats());
    const SparseArguments s = sparse(bounded);
    const float* values = choose(exec, s);
    const RowPolicy by_sample = row_policy(exec, a.sample_count);
    const bool counts = keeps == Keeps::nothing && !a.measure;
    for_rows("deltapipe::TopKCodec::write_headers", by_sample,
             WriteHeaders{s, values, counts ? selection_.nonfinite_G() : nullptr,
                          mixes_ ? nullptr : selection_.largest_G()});
    if (counts && forward_.position != nullptr)
      for_rows("deltapipe::TopKCodec::count_nonfinite", by_row(exec, a), CountNonfinite{s});
    for_rows("deltapipe::TopKCodec::place_blocks", row_policy(exec, 1),
             PlaceBlocks{s, sparse_begin(), result_.data()});
    for_rows("deltapipe::TopKCodec::write_positions", by_sample, WritePositions{s});
    for_rows("deltapipe::TopKCodec::write_values", by_value_row(exec, a),
             WriteValues{s, value_rows(), mixes_ ? nullptr : sent_.data(), values});
    keep(exec, s);
    release_positions();
    Kokkos::deep_copy(exec, host_result_, result_);
    exec.fence();
    return host_result_(0);
  }

  /// Finds the positions to send and returns the values from which to send them.
  const float* choose(const ExecSpace& exec, const SparseArguments& s) {
    const float* values = s.a.x;
    if constexpr (keeps != Keeps::nothing) {
      const float sign = keeps == Keeps::errors ? 1.0f : -1.0f;
      for_rows("deltapipe::TopKCodec::add_records", by_row(exec, s.a),
               AddRecords<M>{s, sign, y_.data()});
      values = y_.data();
    }
    if constexpr (keeps == Keeps::errors)
      if (mixed_) {
        mixed_->template choose<M>(exec, s, selection_, group_B_.data(), values);
        return values;
      }
    if (!forward_has_all_) {
      make_groups(exec, s, Share::all, nullptr, group_B_.data());
      selection_.select(exec, s.a.sample_count, group_B_.data(), values, s.chosen, sent_.data());
    }
    return values;
  }

  /// Updates the sender's records and sums.
  void keep(const ExecSpace& exec, const SparseArguments& s) {
    if (keeps == Keeps::nothing && !s.a.measure) return;
    if constexpr (keeps != Keeps::errors) {
      see(exec, s, s.a.sample_count * s.a.tokens, s.a.x, y_.data());
    } else {
      for_rows("deltapipe::TopKCodec::subtract_values", by_value_row(exec, s.a),
               SubtractValues{s, value_rows(), y_.data()});
      for_rows("deltapipe::TopKCodec::store_errors", by_row(exec, s.a),
               StoreErrors<M>{s, s.a.x, y_.data()});
    }
  }

  /// Sets y to what the receiver sees, and memories to y. x is null at the receiver.
  void see(const ExecSpace& exec, const SparseArguments& s, int rows, const float* x, float* y) {
    using Seen = std::conditional_t<keeps == Keeps::memory, M, NoMemory>;
    if (sparse_samples() > 0)
      for_rows("deltapipe::TopKCodec::read_values", by_value_row(exec, s.a),
               ReadValues{s, value_rows(), sent_.data()});
    for_rows("deltapipe::TopKCodec::see_rows",
             row_policy(exec, rows, 2 * RowBuffers::bytes(shape_.channels)),
             SeeRows<Seen>{s, sent_.data(), x, y});
  }

  std::size_t expected_bytes(const ExecSpace& exec, const Crossing& crossing, const RowArguments& a,
                             std::size_t bytes) override {
    if (sparse_samples() == 0) return this->payload_bytes(crossing);
    find_positions();
    const std::size_t begin = sparse_begin();
    if (bytes < begin) return begin;
    Kokkos::deep_copy(exec, result_, std::uint64_t{0});
    for_rows("deltapipe::TopKCodec::read_positions", row_policy(exec, a.sample_count),
             ReadPositions{sparse(a), begin, bytes,
                           reinterpret_cast<std::uint32_t*>(result_.data() + 1), result_.data()});
    Kokkos::deep_copy(exec, host_result_, result_);
    exec.fence();
    if (host_result_(1) != 0)
      RowCodec::refuse(crossing, "is not one of codec topk",
                       "its headers and positions contradict each other");
    return host_result_(0);
  }

  void run_decode(const ExecSpace& exec, int rows, const RowArguments& a) override {
    if (has_dense_samples()) Base::run_decode(exec, rows, a);
    see(exec, sparse(a), rows, nullptr, a.x);
    release_positions();
  }

  RowPolicy by_row(const ExecSpace& exec, const RowArguments& a) const {
    return row_policy(exec, a.sample_count * a.tokens, RowBuffers::bytes(shape_.channels));
  }
  RowPolicy by_value_row(const ExecSpace& exec, const RowArguments& a) const {
    return row_policy(exec, a.sample_count * value_rows(), ValueBuffers::bytes());
  }

  const double part_;
  const bool follows_;
  const bool mixes_;
  const ValueCoding values_;
  const std::size_t record_bytes_;
  const std::size_t most_;  ///< largest number of a sample's own positions
  std::shared_ptr<ForwardMasks> masks_;
  TopKSelection selection_;
  PositionLists chosen_;
  // State of the current crossing.
  Positions positions_{}, forward_{};
  bool is_held_ = false;
  bool forward_has_all_ = false;
  Vector<float> y_;  ///< values to choose from; later those that are seen or left out
  std::optional<ErrorBound> bound_;      ///< bound of the errors
  std::optional<MixedSelection> mixed_;  ///< EF-mixed, at the sender
  Vector<TopKGroup> group_B_;
  Vector<std::uint64_t> block_B_;
  Vector<float> sent_;            ///< values at the chosen positions: the sender's, then as seen
  Vector<std::uint64_t> result_;  ///< length of a payload; nonzero if it is not valid
  HostVector<std::uint64_t> host_result_;
};

}  // namespace deltapipe::codec
