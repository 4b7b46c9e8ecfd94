// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/rows/row_format_codec.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/parallel/kernel.hpp"
#include "core/codec/rows/message_steps.hpp"

namespace deltapipe::codec {

static_assert(RowFormats::kCount == kCodeFormats);

namespace {

/// Makes the streams of the formats whose codes are entropy coded; null without such a format.
std::unique_ptr<CodeStreams> streams_of(const RowFormats& formats, const CodecShape& shape) {
  CodeStreams::PerFormat bits{};
  bool any = false;
  for (int f = 0; f < RowFormats::kCount; ++f) {
    const RowFormat& format = formats.format[f];
    if (format.kind != RowKind::codes || !format.is_coded) continue;
    bits[format.table] = format.bits;
    any = true;
  }
  return any ? std::make_unique<CodeStreams>(shape, bits) : nullptr;
}

}  // namespace

RowFormatCodec::RowFormatCodec(const CodecShape& shape, std::uint32_t id, const RowFormats& formats)
    : RowCodec(shape, id), formats_(formats) {
  for (int f = 0; f < RowFormats::kCount; ++f) {
    RowFormat& format = formats_.format[f];
    if (format.has_channel_steps()) channel_format_ = f;
    if (!format.has_message_step) continue;
    DELTAPIPE_ASSERT(format.is_coded && format.rms_step > 0, "classes without tables");
    message_format_ = f;
    format.table = kByClass;
  }
  streams_ = streams_of(formats_, shape);
  const std::size_t rows = static_cast<std::size_t>(shape.max_samples) * shape.tokens;
  if (message_format_ >= 0) {
    spreads_ = Vector<RowSpread>(uninitialized("deltapipe::QuantizedCodec::spreads"), rows);
    base_weight_ = Vector<float>(uninitialized("deltapipe::QuantizedCodec::base_weight"), 1);
  }
  if (channel_format_ < 0) return;
  const std::size_t blocks = (rows + kScaleRows - 1) / kScaleRows;
  partials_RC_ = Vector<std::uint32_t>(uninitialized("deltapipe::QuantizedCodec::partial_scales"),
                                       blocks * shape.channels);
}

std::size_t RowFormatCodec::max_payload_bytes() const {
  std::size_t largest = 0;
  for (int f = 0; f < RowFormats::kCount; ++f)
    largest = std::max(largest, round_up(block_bytes(f, shape_.tokens), 4) + most_coded_bytes(f));
  return largest * shape_.max_samples +
         (channel_format_ < 0 && message_format_ < 0 ? 0 : front_size());
}

std::size_t RowFormatCodec::memory_bytes() const {
  return RowCodec::memory_bytes() + bytes_of_view(partials_RC_) + bytes_of_view(spreads_) +
         bytes_of_view(base_weight_) + (streams_ == nullptr ? 0 : streams_->memory_bytes());
}

std::uint64_t RowFormatCodec::values_in_rms_steps(const Crossing& crossing) const {
  std::uint64_t tokens = 0;
  for (std::size_t b = 0; b < crossing.samples(); ++b)
    if (const RowFormat& format = formats_.format[format_of(crossing, b)];
        format.rms_step > 0 && !format.keeps_step)
      tokens += static_cast<std::uint64_t>(crossing.tokens[b]);
  return tokens * static_cast<std::uint64_t>(shape_.channels);
}

void RowFormatCodec::set_rms_step(double fraction) {
  DELTAPIPE_ASSERT(fraction >= kLeastRmsStep && fraction <= kLargestRmsStep, "a step out of range");
  for (RowFormat& format : formats_.format)
    if (format.rms_step > 0 && !format.keeps_step) format.rms_step = static_cast<float>(fraction);
}

std::size_t RowFormatCodec::most_coded_bytes(int format) const {
  if (streams_ == nullptr) return 0;
  CodeStreams::PerFormat rows{};
  rows[formats_.format[format].table] = shape_.tokens;
  return streams_->max_bytes(rows);
}

std::size_t RowFormatCodec::tail_bytes(const Crossing& crossing) const {
  if (streams_ == nullptr) return 0;
  CodeStreams::PerFormat rows{};
  for (std::size_t b = 0; b < crossing.sample_ids.size(); ++b)
    rows[formats_.format[format_of(crossing, b)].table] += crossing.tokens[b];
  return streams_->max_bytes(rows);
}

std::size_t RowFormatCodec::code_rows(const ExecSpace& exec, const RowArguments& arguments,
                                      std::size_t max_bytes) {
  if (streams_ == nullptr) return max_bytes;
  coded_.clear();
  CodeStreams::PerFormat rows{};
  for (const SampleEntry& sample : samples()) {
    const int table = formats_.format[sample.format].table;
    coded_.push_back({table, sample.tokens});
    rows[table] += sample.tokens;
  }
  return streams_->encode(exec, coded_, arguments.payload, max_bytes - streams_->max_bytes(rows));
}

std::size_t RowFormatCodec::expected_bytes(const ExecSpace& exec, const Crossing& crossing,
                                           const RowArguments& arguments, std::size_t bytes) {
  const std::size_t most = payload_bytes(crossing);
  if (streams_ == nullptr) return most;
  coded_.clear();
  for (std::size_t b = 0; b < crossing.sample_ids.size(); ++b)
    coded_.push_back({formats_.format[format_of(crossing, b)].table, crossing.tokens[b]});
  const std::size_t begin = most - tail_bytes(crossing);
  if (has_message_steps(crossing)) {
    if (bytes < begin) return begin;
    for_range("deltapipe::QuantizedCodec::read_classes", exec,
              arguments.sample_count * arguments.tokens,
              ReadClasses{with_codes(arguments), formats_});
  }
  const CodeStreams::Decoded decoded =
      streams_->decode(exec, coded_, arguments.payload, begin, bytes);
  if (decoded.bytes == bytes && !decoded.is_sound)
    refuse(crossing, "has entropy-coded values that do not decode", {});
  return decoded.bytes;
}

std::size_t RowFormatCodec::front_bytes(const Crossing& crossing) const {
  for (std::size_t b = 0; b < crossing.sample_ids.size(); ++b)
    if (crossing.tokens[b] > 0 && formats_.format[format_of(crossing, b)].has_front())
      return front_size();
  return 0;
}

bool RowFormatCodec::has_channel_steps() const {
  return std::any_of(samples().begin(), samples().end(), [&](const SampleEntry& sample) {
    return sample.tokens > 0 && formats_.format[sample.format].has_channel_steps();
  });
}

}  // namespace deltapipe::codec
