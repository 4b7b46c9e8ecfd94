// SPDX-License-Identifier: BSD-3-Clause
// Memories that move with the views of augmented images. A crop moves what a row of activations
// shows, so that a sample's record, as its last visit left it, belongs to other rows.
// Both ends know the view of every visit. They keep the record in the frame of the whole image; the
// codec inside works on the rows that the view sees:
//
//   gather    row t of the view := the image's row there
//   codec     x_hat = base + Q(x - base);  keep(x_hat)
//   scatter   the image's row := row t of the view; rows that the view does not see are unchanged
//
// Rows move in their storage format, so that neither end rounds them again. A memory predicts. It
// therefore uses the nearest row where a view leaves the image and where a first view does not
// reach. An error belongs only to its own row, so that it is zero at these places.
#include <algorithm>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/row.hpp"
#include "core/codec/algorithms/algorithms.hpp"
#include "core/codec/quantizer/sample_memory.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/sample_table.hpp"

namespace deltapipe::codec {

namespace {

struct MovedSample {
  std::uint64_t record;  ///< offset into the pool of the cache
  RowView view;
  bool is_first;  ///< the record is still empty
};

/// Arguments of the kernels, which use a team for each row of each sample.
struct Moves {
  const MovedSample* samples;
  RowGrid grid;
  RowParts parts;
  OutsideGrid outside;
  std::size_t record_bytes;
  std::uint8_t* pool;
  std::uint8_t* viewed;  ///< records of the views, one after another

  KOKKOS_INLINE_FUNCTION std::uint8_t* record_of(int b) const { return pool + samples[b].record; }
  KOKKOS_INLINE_FUNCTION std::uint8_t* viewed_of(int b) const {
    return viewed + static_cast<std::size_t>(b) * record_bytes;
  }
  KOKKOS_INLINE_FUNCTION std::uint8_t* second_part(std::uint8_t* record, int row) const {
    return record + parts.first * static_cast<std::size_t>(grid.rows()) + parts.second * row;
  }
  /// Copies parts of rows, which are whole 16-bit words. If `from` is null, writes zeros.
  KOKKOS_INLINE_FUNCTION static void copy(const RowMember& team, std::size_t bytes,
                                          const std::uint8_t* from, std::uint8_t* to) {
    const auto* words = reinterpret_cast<const std::uint16_t*>(from);
    auto* const target = reinterpret_cast<std::uint16_t*>(to);
    const int count = static_cast<int>(bytes / sizeof(std::uint16_t));
    if (words == nullptr)
      row_for(team, count, [=](int i) { target[i] = 0; });
    else
      row_for(team, count, [=](int i) { target[i] = words[i]; });
  }
  /// Copies row `from_row` of `from` to row `to_row` of `to`; writes zeros for kNoRow.
  KOKKOS_INLINE_FUNCTION void copy_row(const RowMember& team, std::uint8_t* from, int from_row,
                                       std::uint8_t* to, int to_row) const {
    const bool is_there = from_row != kNoRow;
    copy(team, parts.first, is_there ? from + parts.first * from_row : nullptr,
         to + parts.first * to_row);
    copy(team, parts.second, is_there ? second_part(from, from_row) : nullptr,
         second_part(to, to_row));
  }
};

struct GatherRows {
  Moves m;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int rows = m.grid.rows();
    const int b = team.league_rank() / rows, row = team.league_rank() % rows;
    const MovedSample& sample = m.samples[b];
    if (sample.is_first) return;
    const int from = row_in_image(m.grid, sample.view, row, m.outside);
    m.copy_row(team, m.record_of(b), from, m.viewed_of(b), row);
  }
};

struct ScatterRows {
  Moves m;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int rows = m.grid.rows();
    const int b = team.league_rank() / rows, row = team.league_rank() % rows;
    const MovedSample& sample = m.samples[b];
    if (sample.is_first && row == 0) {
      const std::size_t used = (m.parts.first + m.parts.second) * static_cast<std::size_t>(rows);
      Moves::copy(team, m.record_bytes - used, nullptr, m.record_of(b) + used);
    }
    const int from =
        row_in_view(m.grid, sample.view, row, sample.is_first ? m.outside : OutsideGrid::no_row);
    if (from == kNoRow && !sample.is_first) return;
    m.copy_row(team, m.viewed_of(b), from, m.record_of(b), row);
  }
};

std::uint32_t id_of(const RowGrid& grid, std::uint32_t main) {
  std::uint64_t hash = chained(0, main);
  for (const int value : {grid.leading, grid.height, grid.width, grid.stride})
    hash = chained(hash, static_cast<std::uint64_t>(value));
  return folded(hash);
}

class MovedMemoryCodec final : public Codec {
 public:
  MovedMemoryCodec(const CodecShape& shape, const RowParts& parts, std::unique_ptr<Codec> main)
      : grid_(shape.grid),
        parts_(parts),
        main_(std::move(main)),
        outside_(main_->record().shared_bytes > 0 ? OutsideGrid::nearest : OutsideGrid::no_row),
        id_(id_of(grid_, main_->id())),
        table_(shape.max_samples),
        viewed_(uninitialized("deltapipe::MovedMemoryCodec::records"),
                static_cast<std::size_t>(shape.max_samples) * bytes_at_most(shape)) {
    DELTAPIPE_ASSERT(grid_.rows() == shape.tokens, "a place for each row");
  }

  std::uint32_t id() const override { return id_; }
  std::uint32_t state_hash(const Crossing& crossing) const override {
    std::uint64_t hash = main_->state_hash(crossing);
    for (const RowView& view : crossing.views)
      for (const int value : {view.dy, view.dx})
        hash = chained(hash, static_cast<std::uint64_t>(value));
    return folded(hash);
  }
  RecordLayout record() const override { return main_->record(); }
  std::size_t max_payload_bytes() const override { return main_->max_payload_bytes(); }
  std::size_t payload_bytes(const Crossing& crossing) const override {
    return main_->payload_bytes(crossing);
  }
  std::size_t memory_bytes() const override {
    return main_->memory_bytes() + table_.memory_bytes() + bytes_of_view(viewed_);
  }
  void share(std::shared_ptr<ForwardMasks> masks) override { main_->share(std::move(masks)); }
  bool waits() const override { return main_->waits(); }
  std::uint64_t values_in_rms_steps(const Crossing& crossing) const override {
    return main_->values_in_rms_steps(crossing);
  }
  void set_rms_step(double fraction) override { main_->set_rms_step(fraction); }

  std::size_t encode(const ExecSpace& exec, const Crossing& crossing, Activations x_BTC,
                     const MemoryRecords& records, DeviceBytes payload) override {
    std::size_t bytes = 0;
    with_view(exec, crossing, records, BoundarySide::sender, [&](const MemoryRecords& viewed) {
      bytes = main_->encode(exec, crossing, x_BTC, viewed, payload);
    });
    return bytes;
  }
  void decode(const ExecSpace& exec, const Crossing& crossing, DeviceBytes payload,
              std::size_t bytes, const MemoryRecords& records, Activations x_BTC) override {
    with_view(exec, crossing, records, BoundarySide::receiver, [&](const MemoryRecords& viewed) {
      main_->decode(exec, crossing, payload, bytes, viewed, x_BTC);
    });
  }
  bool lost_values() const override { return main_->lost_values(); }
  void measure_errors(bool on) override { main_->measure_errors(on); }
  CodecStatistics take_statistics(const ExecSpace& exec) override {
    return main_->take_statistics(exec);
  }

 private:
  std::size_t bytes_at_most(const CodecShape& shape) const {
    const RecordLayout layout = main_->record();
    if (shape.side) return layout.bytes(*shape.side);
    return std::max(layout.bytes(BoundarySide::sender), layout.bytes(BoundarySide::receiver));
  }

  /// Calls cross(records of the views) between gathering and scattering.
  template <class Cross>
  void with_view(const ExecSpace& exec, const Crossing& crossing, const MemoryRecords& records,
                 BoundarySide side, const Cross& cross) {
    const std::size_t record_bytes = main_->record().bytes(side);
    if (record_bytes == 0 || crossing.samples() == 0) return cross(records);
    DELTAPIPE_ASSERT(crossing.views.size() == crossing.samples(), "one view a sample");
    samples_.clear();
    MemoryRecords viewed{viewed_, {}};
    for (std::size_t b = 0; b < crossing.samples(); ++b) {
      DELTAPIPE_ASSERT(crossing.tokens[b] == grid_.rows(), "an image without padding rows");
      samples_.push_back({records.offset_B[b], crossing.views[b], crossing.visits[b] == 0});
      viewed.offset_B.push_back(b * record_bytes);
    }
    const Moves moves{table_.upload(exec, samples_), grid_,         parts_, outside_, record_bytes,
                      records.pool.data(),           viewed_.data()};
    const int rows = static_cast<int>(samples_.size()) * grid_.rows();
    for_rows("deltapipe::MovedMemoryCodec::gather", row_policy(exec, rows), GatherRows{moves});
    cross(viewed);
    for_rows("deltapipe::MovedMemoryCodec::scatter", row_policy(exec, rows), ScatterRows{moves});
  }

  const RowGrid grid_;
  const RowParts parts_;
  const std::unique_ptr<Codec> main_;
  const OutsideGrid outside_;
  const std::uint32_t id_;
  SampleTable<MovedSample> table_;
  std::vector<MovedSample> samples_;
  DeviceBytes viewed_;  ///< records of a micro-batch in the frames of its views
};

}  // namespace

std::unique_ptr<Codec> make_moved_memory(const CodecShape& shape, MemoryStorage storage,
                                         std::unique_ptr<Codec> main) {
  const RowParts parts = with_storage(
      storage, [&]<MemoryStorage stored>() { return Memory<stored>::row_parts(shape.channels); });
  return std::make_unique<MovedMemoryCodec>(shape, parts, std::move(main));
}

}  // namespace deltapipe::codec
