// SPDX-License-Identifier: BSD-3-Clause
// Kernels over rows of codes or dense values, and the codec that launches them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/codec/quantizer/sample_memory.hpp"
#include "core/codec/rows/channel_steps.hpp"
#include "core/codec/rows/message_steps.hpp"
#include "core/codec/rows/quantize_row.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_format_codec.hpp"
#include "core/codec/rows/row_sums.hpp"

namespace deltapipe::codec {

/// Returns the bytes of a sample's record with rows of type M.
template <class M>
std::size_t record_bytes_of(const CodecShape& shape) {
  return round_up(M::bytes(shape.tokens, shape.channels), kRecordAlignment);
}

/// Zeroes what a first visit does not write of a record, so that equal memories are equal records:
/// a row of padding and, with row 0, the bytes after the last row.
template <class M>
KOKKOS_INLINE_FUNCTION void clear_unwritten(const RowMember& team, const MemoryRow& row,
                                            bool is_padding, const RowBuffers& buffers) {
  if (row.t == 0) {
    const std::size_t used = M::bytes(row.tokens, row.channels);
    std::uint8_t* rest = row.record + used;
    row_for_synced(team, static_cast<int>(round_up(used, kRecordAlignment) - used),
                   [=](int i) { rest[i] = 0; });
  }
  if (!is_padding) return;
  NoMemory::load(team, row, buffers.work, buffers.codes);
  M::store(team, row, buffers.work, buffers.codes);
}

/// Sets work to the values from which changes are counted at this crossing. Products have double
/// precision, so that no compiler fuses them with a sum.
template <class M>
KOKKOS_INLINE_FUNCTION void load_scaled(const RowMember& team, const MemoryRow& row, float* work,
                                        std::uint8_t* codes) {
  M::load(team, row, work, codes);
  if (std::is_same_v<M, NoMemory> || row.scale == 1.0f) return;
  const double scale = row.scale;
  row_for_synced(team, row.channels, [=](int c) {
    work[c] = static_cast<float>(static_cast<double>(work[c]) * scale);
  });
}

/// Returns the values that load_scaled writes: in the record if it holds them, else in work.
template <class M>
KOKKOS_INLINE_FUNCTION const float* scaled_values_of(const RowMember& team, const MemoryRow& row,
                                                     float* work, std::uint8_t* codes) {
  if (row.scale == 1.0f) return values_of<M>(team, row, work, codes);
  load_scaled<M>(team, row, work, codes);
  return work;
}

/// Returns a bound of the magnitudes that load_scaled writes.
template <class M>
KOKKOS_INLINE_FUNCTION float bound_of(const MemoryRow& row) {
  return row.scale == 1.0f ? M::bound(row) : kUnbounded;
}

/// Sets the record's row to x at this crossing, in storage precision. work may be x.
template <class M>
KOKKOS_INLINE_FUNCTION void store_scaled(const RowMember& team, const MemoryRow& row,
                                         const float* x, float* work, std::uint8_t* codes) {
  if (std::is_same_v<M, NoMemory> || row.scale == 1.0f) return M::store(team, row, x, codes);
  const float scale = row.scale;
  row_for_synced(team, row.channels, [=](int c) { work[c] = saturate(x[c] / scale, kMaxFloat); });
  M::store(team, row, work, codes);
}

/// Returns the largest magnitude that a record's row can hold at a crossing with this scale.
template <class M>
KOKKOS_INLINE_FUNCTION float largest_kept(float scale) {
  return M::kMost >= kMaxFloat || M::kMost * scale >= kMaxFloat ? kMaxFloat : M::kMost * scale;
}

/// Use of a sample's record by an encoder; the template argument Sender below. M is the type of the
/// record's rows. begin() returns the values to quantise, and sets work to the values to which the
/// codes will be added; it may let `buffers.work` point to the record's row. keep() stores the
/// record's row when work is what the receiver sees. Here, the record is the memory that both ends
/// keep. On hosts, rows in fp32 are changed in place, which saves two copies.
template <class M>
struct MemorySender {
  using Record = M;
  /// Returns the bytes of scratch memory in addition to those of RowBuffers.
  static std::size_t scratch_bytes(int) { return 0; }
  KOKKOS_INLINE_FUNCTION static float largest_kept(float scale) {
    return codec::largest_kept<M>(scale);
  }

  /// Sets work to the values that are subtracted from x before it is quantised.
  KOKKOS_INLINE_FUNCTION static void load(const RowMember& team, const MemoryRow& record,
                                          float* work, std::uint8_t* codes) {
    load_scaled<M>(team, record, work, codes);
  }
  KOKKOS_INLINE_FUNCTION static const float* begin(const RowMember& team, const RowFormat& format,
                                                   const MemoryRow& record, const float* x,
                                                   RowBuffers& buffers) {
    if constexpr (kHostExecution && std::is_same_v<M, Memory<MemoryStorage::fp32>>)
      if (record.scale == 1.0f) buffers.work = record.values<float>();
    if (format.uses_memory)
      load_scaled<M>(team, record, buffers.work, buffers.codes);
    else if (format.kind == RowKind::codes)
      NoMemory::load(team, record, buffers.work, buffers.codes);
    return x;
  }
  KOKKOS_INLINE_FUNCTION static void keep(const RowMember& team, const MemoryRow& record,
                                          const float*, const RowBuffers& buffers) {
    store_scaled<M>(team, record, buffers.work, buffers.work, buffers.codes);
  }
};

/// Returns a row of fp32 values in a sample's payload block.
KOKKOS_INLINE_FUNCTION float* float_row(const RowArguments& a, const SampleEntry& sample, int t) {
  return reinterpret_cast<float*>(a.payload + sample.payload) +
         static_cast<std::size_t>(t) * a.channels;
}

/// Sends a first visit's values as fp32, and sets work to what was sent. Only finite values may
/// enter a memory: NaN becomes 0, an infinity the largest number.
KOKKOS_INLINE_FUNCTION void send_float_row(const RowMember& team, const RowArguments& a,
                                           const SampleEntry& sample, int t, const float* x,
                                           float* work) {
  float* values = float_row(a, sample, t);
  row_for_synced(team, a.channels, [=](int c) { values[c] = work[c] = saturate(x[c], kMaxFloat); });
}

KOKKOS_INLINE_FUNCTION void receive_float_row(const RowMember& team, const RowArguments& a,
                                              const SampleEntry& sample, int t, float* work) {
  const float* values = float_row(a, sample, t);
  row_for_synced(team, a.channels, [=](int c) { work[c] = values[c]; });
}

template <class Sender>
struct EncodeRows {
  RowArguments a;
  RowFormats formats;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    using Record = typename Sender::Record;
    const int index = team.league_rank();
    const SampleEntry& sample = a.samples[index / a.tokens];
    const RowFormat& format = formats.format[sample.format];
    const int t = index % a.tokens;
    const int n = a.channels;
    RowBuffers buffers = RowBuffers::of(team, n);
    const MemoryRow record = row_of(a, index);
    if (format.kind == RowKind::sparse) return;
    const bool is_padding = t >= sample.tokens;
    if (!format.uses_memory) clear_unwritten<Record>(team, record, is_padding, buffers);
    if (is_padding) return;
    const float* x = a.x + static_cast<std::size_t>(index) * n;
    const auto values = Sender::begin(team, format, record, x, buffers);
    const std::uint32_t largest = largest_of_row(team, n, values);
    prefetch_next_row(x, n);
    if (format.kind == RowKind::codes)
      quantize_row(team, a, format, sample, t, values, largest, buffers);
    else
      send_float_row(team, a, sample, t, values, buffers.work);
    if (t + 1 == sample.tokens)
      clear_block_end(team, a.payload + sample.payload, block_bytes_of(format, sample.tokens, n));
    add_row_sums(team, a, index, x, largest, Sender::largest_kept(a.scale), buffers.work);
    Sender::keep(team, record, values, buffers);
  }
};

template <class M>
struct DecodeRows {
  RowArguments a;
  RowFormats formats;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int b = index / a.tokens;
    const int t = index % a.tokens;
    const int n = a.channels;
    float* x = a.x + static_cast<std::size_t>(index) * n;
    if (b >= a.sample_count) {
      row_for_synced(team, n, [=](int c) { x[c] = 0.0f; });
      return;
    }
    const SampleEntry& sample = a.samples[b];
    const RowFormat& format = formats.format[sample.format];
    const RowBuffers buffers = RowBuffers::of(team, n);
    const MemoryRow memory = row_of(a, index);
    if (format.kind == RowKind::sparse) return;
    const bool is_padding = t >= sample.tokens;
    if (!format.uses_memory) clear_unwritten<M>(team, memory, is_padding, buffers);
    if (is_padding) return row_for_synced(team, n, [=](int c) { x[c] = 0.0f; });
    const float bound = format.uses_memory ? bound_of<M>(memory) : 0.0f;
    if (format.uses_memory)
      load_scaled<M>(team, memory, x, buffers.codes);
    else if (format.kind == RowKind::codes)
      NoMemory::load(team, memory, x, buffers.codes);
    if (format.kind == RowKind::codes)
      dequantize_row(team, a, format, sample, t, x, bound, buffers.codes);
    else
      receive_float_row(team, a, sample, t, x);
    store_scaled<M>(team, memory, x, buffers.work, buffers.codes);
  }
};

/// A codec of RowFormats with memories M, which the receiver keeps. Sender is the sender's use of
/// its own records.
template <class M, class Sender = MemorySender<M>>
class QuantizedCodec : public RowFormatCodec {
 protected:
  using RowFormatCodec::RowFormatCodec;

  std::size_t run_encode(const ExecSpace& exec, const RowArguments& arguments,
                         std::size_t max_bytes) override {
    find_channel_steps(exec, arguments);
    find_message_step(exec, arguments);
    const int rows = arguments.sample_count * arguments.tokens;
    const std::size_t scratch =
        RowBuffers::bytes(shape_.channels) + Sender::scratch_bytes(shape_.channels);
    for_rows("deltapipe::QuantizedCodec::encode", row_policy(exec, rows, scratch),
             EncodeRows<Sender>{with_codes(arguments), formats()});
    return code_rows(exec, arguments, max_bytes);
  }

  void run_decode(const ExecSpace& exec, int rows, const RowArguments& arguments) override {
    for_rows("deltapipe::QuantizedCodec::decode",
             row_policy(exec, rows, RowBuffers::bytes(shape_.channels)),
             DecodeRows<M>{with_codes(arguments), formats()});
  }

 private:
  /// Runs the kernels that write the message's step, if any row has it.
  void find_message_step(const ExecSpace& exec, const RowArguments& arguments) {
    if (!has_message_steps(crossing())) return;
    const int rows = arguments.sample_count * arguments.tokens;
    for_rows("deltapipe::QuantizedCodec::find_spreads",
             row_policy(exec, rows, RowBuffers::bytes(shape_.channels)),
             FindSpreads<Sender>{arguments, formats(), spreads()});
    for_rows("deltapipe::QuantizedCodec::find_message_step", row_policy(exec, 1),
             FindMessageStep{spreads(), rows, message_format().rms_step, arguments.front_steps(),
                             base_weight()});
  }

  /// Runs the kernels that write the steps per channel, if any row has them.
  void find_channel_steps(const ExecSpace& exec, const RowArguments& arguments) {
    if (!has_channel_steps()) return;
    const int rows = arguments.sample_count * arguments.tokens;
    const int blocks = (rows + kScaleRows - 1) / kScaleRows;
    std::uint32_t* partials_RC = channel_partials();
    for_rows("deltapipe::QuantizedCodec::channel_scales",
             row_policy(exec, blocks, RowBuffers::bytes(shape_.channels)),
             ChannelScales<Sender>{arguments, formats(), partials_RC});
    for_range("deltapipe::QuantizedCodec::channel_steps", exec, shape_.channels,
              ChannelSteps{channel_format(), partials_RC, blocks, shape_.channels,
                           arguments.front_steps()});
  }
};

}  // namespace deltapipe::codec
