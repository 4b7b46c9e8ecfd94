// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/rows/row_format.hpp"

#include <algorithm>

namespace deltapipe::codec {

RowFormat code_format(const CodecSettings& settings, int channels) {
  RowFormat format;
  format.kind = RowKind::codes;
  format.bits = settings.bits;
  if (settings.scale == ScaleKind::tile) format.segment = std::min(settings.tile, channels);
  if (settings.scale == ScaleKind::message) {
    format.has_message_step = true;
    format.segment = channels;
  }
  if (format.segment > 0) format.segments = (channels + format.segment - 1) / format.segment;
  format.stochastic = settings.rounding == Rounding::stochastic;
  format.is_coded = is_entropy_coded(settings);
  if (settings.rms_step > 0) {
    format.bits = 8;  // enough levels that nothing is cut
    format.rms_step = static_cast<float>(settings.rms_step);
    return format;
  }
  const bool symmetric = settings.levels == Levels::symmetric;
  const float half = static_cast<float>(1 << (settings.bits - 1));
  format.low = symmetric ? 1 - half : -half;
  format.high = half - 1;
  format.shift = -format.low;
  // Unbiased codes reach all values. Those of the AC-SGD code do not: it cuts the largest positive
  // ones.
  format.negative_levels = -format.low;
  format.positive_levels = symmetric || format.stochastic ? format.high : half;
  return format;
}

}  // namespace deltapipe::codec
