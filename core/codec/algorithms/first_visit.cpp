// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/algorithms/first_visit.hpp"

#include <algorithm>
#include <cmath>

#include "core/base/error.hpp"

namespace deltapipe::codec {

namespace {

/// FirstVisit::refine: least bits of the first two visits. The second sends what the first left out
/// along with the change.
constexpr int kRefineBits = 4;

int refine_bits(const CodecSettings& settings) {
  return std::max(settings.bits, kRefineBits);
}

/// Visits at a number of bits have its levels.
CodecSettings with_levels(CodecSettings settings) {
  if (settings.scale_rule == ScaleRule::rms) settings.scale_rule = ScaleRule::max;
  return settings;
}

}  // namespace

CodecSettings first_visit_settings(const CodecSettings& settings) {
  DELTAPIPE_ASSERT(settings.first_visit != FirstVisit::zero, "a format of its own");
  CodecSettings direct = with_levels(settings);
  direct.kind = CodecKind::quantize;
  if (settings.first_visit == FirstVisit::steps) {
    direct.scale_rule = ScaleRule::rms;
    direct.rms_step = settings.first_visit_step;
  }
  if (settings.first_visit == FirstVisit::fp32) direct.kind = CodecKind::none;
  if (settings.first_visit == FirstVisit::fp16) direct.kind = CodecKind::fp16;
  if (direct.kind != CodecKind::quantize) direct.entropy_coding = false;
  direct.bits = settings.first_visit == FirstVisit::quantize8 ? 8 : refine_bits(settings);
  direct.scale = ScaleKind::tile;
  direct.rounding = Rounding::nearest;
  direct.levels = Levels::symmetric;
  return direct;
}

RowFormat first_visit_format(const CodecSettings& settings, int channels) {
  const CodecSettings direct = first_visit_settings(settings);
  if (direct.kind == CodecKind::none) return dense_format(RowKind::fp32);
  if (direct.kind == CodecKind::fp16) return dense_format(RowKind::fp16);
  RowFormat format = code_format(direct, direct.scale, direct.bits, channels);
  format.keeps_step = true;
  return format;
}

RowFormat refined_format(const CodecSettings& settings, int channels) {
  RowFormat format =
      code_format(with_levels(settings), ScaleKind::tile, refine_bits(settings), channels);
  format.uses_memory = true;
  return format;
}

/// A sample's former visit was an epoch ago: a warm-up that lasted until then left nothing out.
bool Refinement::first_was_coarse(const Crossing& crossing) const {
  return warmup_epochs_ == 0 || std::floor(crossing.epoch) - 1 >= warmup_epochs_;
}

}  // namespace deltapipe::codec
