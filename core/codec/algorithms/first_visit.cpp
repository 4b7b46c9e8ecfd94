// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/algorithms/first_visit.hpp"

#include "core/base/error.hpp"

namespace deltapipe::codec {

CodecSettings first_visit_settings(const CodecSettings& settings) {
  DELTAPIPE_ASSERT(settings.first_visit != FirstVisit::zero, "changes from zeros are not values");
  CodecSettings direct = settings;
  if (settings.first_visit == FirstVisit::fp32) {
    direct.kind = CodecKind::none;
    direct.entropy_coding = false;
    return direct;
  }
  const bool in_steps = settings.first_visit == FirstVisit::steps;
  direct.kind = CodecKind::directq;
  direct.bits = 8;
  direct.scale = ScaleKind::tile;
  // Codes of 8 bits are entropy coded if the changes are.
  direct.entropy_coding = is_entropy_coded(settings);
  direct.rms_step = in_steps ? settings.first_visit_step : 0;
  direct.rounding = Rounding::nearest;
  direct.levels = Levels::symmetric;
  return direct;
}

RowFormat first_visit_format(const CodecSettings& settings, int channels) {
  const CodecSettings direct = first_visit_settings(settings);
  if (direct.kind == CodecKind::none) return RowFormat{};
  RowFormat format = code_format(direct, channels);
  format.keeps_step = true;
  return format;
}

}  // namespace deltapipe::codec
