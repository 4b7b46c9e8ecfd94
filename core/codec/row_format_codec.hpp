// SPDX-License-Identifier: BSD-3-Clause
// Sizes and tables of codecs whose samples each have one of a few row formats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/memory_ledger.hpp"
#include "core/codec/row_codec.hpp"
#include "core/codec/row_format.hpp"

namespace deltapipe::codec {

/// Rows that one team looks at for steps per channel.
inline constexpr int kScaleRows = 64;

class RowFormatCodec : public RowCodec {
 public:
  std::size_t max_payload_bytes() const override;
  std::size_t memory_bytes() const override {
    return RowCodec::memory_bytes() + bytes_of_view(partials_RC_);
  }

 protected:
  RowFormatCodec(const CodecShape& shape, std::uint32_t id, const RowFormats& formats);

  std::size_t block_bytes(int format, int tokens) const override {
    return block_bytes_of(formats_.format[format], tokens, shape_.channels);
  }
  std::size_t front_bytes(const Crossing& crossing) const override;

  const RowFormats& formats() const { return formats_; }
  /// Rows of the crossing at hand whose steps stand at the payload's front.
  int rows_with_channel_steps() const;
  /// Their format, if any format has such steps.
  const RowFormat& channel_format() const { return formats_.format[channel_format_]; }
  /// C values for every kScaleRows rows.
  std::uint32_t* channel_partials() const { return partials_RC_.data(); }

 private:
  std::size_t front_size() const { return round_up(std::size_t{2} * shape_.channels, 4); }

  const RowFormats formats_;
  int channel_format_ = -1;  ///< -1: none
  Vector<std::uint32_t> partials_RC_;
};

}  // namespace deltapipe::codec
