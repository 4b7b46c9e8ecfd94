// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/row_format_codec.hpp"

#include <algorithm>

namespace deltapipe::codec {

RowFormatCodec::RowFormatCodec(const CodecShape& shape, std::uint32_t id, const RowFormats& formats)
    : RowCodec(shape, id), formats_(formats) {
  for (int f = 0; f < RowFormats::kCount; ++f)
    if (formats.format[f].has_channel_steps()) channel_format_ = f;
  if (channel_format_ < 0) return;
  const std::size_t rows = static_cast<std::size_t>(shape.max_samples) * shape.tokens;
  const std::size_t blocks = (rows + kScaleRows - 1) / kScaleRows;
  partials_RC_ = Vector<std::uint32_t>(uninitialized("deltapipe::QuantizedCodec::partial_scales"),
                                       blocks * shape.channels);
}

std::size_t RowFormatCodec::max_payload_bytes() const {
  std::size_t largest = 0;
  for (int f = 0; f < RowFormats::kCount; ++f)
    largest = std::max(largest, round_up(block_bytes(f, shape_.tokens), 4));
  return largest * shape_.max_samples + (channel_format_ < 0 ? 0 : front_size());
}

std::size_t RowFormatCodec::front_bytes(const Crossing& crossing) const {
  for (std::size_t b = 0; b < crossing.sample_ids.size(); ++b)
    if (crossing.tokens[b] > 0 && formats_.format[format_of(crossing, b)].has_channel_steps())
      return front_size();
  return 0;
}

int RowFormatCodec::rows_with_channel_steps() const {
  int rows = 0;
  for (const SampleEntry& sample : samples())
    if (formats_.format[sample.format].has_channel_steps()) rows += sample.tokens;
  return rows;
}

}  // namespace deltapipe::codec
