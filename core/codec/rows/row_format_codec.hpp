// SPDX-License-Identifier: BSD-3-Clause
// Sizes and tables of codecs whose samples each have one of a few row formats.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/observe/memory_ledger.hpp"
#include "core/codec/entropy/code_streams.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_format.hpp"

namespace deltapipe::codec {

/// Rows in which one team finds steps per channel.
inline constexpr int kScaleRows = 64;

class RowFormatCodec : public RowCodec {
 public:
  std::size_t max_payload_bytes() const override;
  std::size_t memory_bytes() const override;
  bool waits() const override { return streams_ != nullptr; }
  std::uint64_t values_in_rms_steps(const Crossing& crossing) const override;
  void set_rms_step(double fraction) override;

 protected:
  RowFormatCodec(const CodecShape& shape, std::uint32_t id, const RowFormats& formats);

  std::size_t block_bytes(int format, int tokens) const override {
    return block_bytes_of(formats_.format[format], tokens, shape_.channels);
  }
  std::size_t front_bytes(const Crossing& crossing) const override;
  std::size_t tail_bytes(const Crossing& crossing) const override;
  std::size_t expected_bytes(const ExecSpace& exec, const Crossing& crossing,
                             const RowArguments& arguments, std::size_t bytes) override;
  /// Returns the arguments with buffers for what does not go into the payload's blocks directly.
  RowArguments with_codes(RowArguments arguments) const {
    arguments.codes = streams_ == nullptr ? nullptr : streams_->codes();
    arguments.classes = streams_ == nullptr ? nullptr : streams_->classes();
    arguments.spreads = spreads_.data();
    arguments.base_weight = base_weight_.data();
    return arguments;
  }
  /// Writes the codes that kernels have stored in these buffers; returns the payload's length.
  std::size_t code_rows(const ExecSpace& exec, const RowArguments& arguments,
                        std::size_t max_bytes);

  const RowFormats& formats() const { return formats_; }
  /// Returns true if any row of the current crossing has steps per channel at the payload's front.
  bool has_channel_steps() const;
  /// Returns the format with such steps, if there is one.
  const RowFormat& channel_format() const { return formats_.format[channel_format_]; }
  /// Returns true if any row of the crossing has a step of the message.
  bool has_message_steps(const Crossing& crossing) const {
    return message_format_ >= 0 && front_bytes(crossing) > 0;
  }
  /// Returns the format with such steps, if there is one; all rows have the same fraction.
  const RowFormat& message_format() const { return formats_.format[message_format_]; }
  RowSpread* spreads() const { return spreads_.data(); }
  float* base_weight() const { return base_weight_.data(); }
  /// Returns C values for every kScaleRows rows.
  std::uint32_t* channel_partials() const { return partials_RC_.data(); }

 private:
  std::size_t front_size() const {
    return message_format_ >= 0 ? 4 : round_up(std::size_t{2} * shape_.channels, 4);
  }
  std::size_t most_coded_bytes(int format) const;

  RowFormats formats_;       ///< only their rms_step changes
  int channel_format_ = -1;  ///< -1: none
  int message_format_ = -1;  ///< -1: none
  Vector<RowSpread> spreads_;
  Vector<float> base_weight_;  ///< one value
  Vector<std::uint32_t> partials_RC_;
  std::unique_ptr<CodeStreams> streams_;  ///< null: all codes are packed
  std::vector<CodeStreams::Sample> coded_;
};

}  // namespace deltapipe::codec
