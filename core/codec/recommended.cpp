// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/recommended.hpp"

namespace deltapipe {

CodecSettings recommended_settings(Direction direction) {
  const bool forward = direction == Direction::forward;
  CodecSettings settings;
  settings.kind = forward ? CodecKind::delta : CodecKind::quantize;
  settings.scale_rule = ScaleRule::rms;
  settings.rms_step = forward ? 1.1 : 0.5;
  settings.entropy_coding = true;
  if (forward) settings.first_visit = FirstVisit::refine;
  settings.error_feedback = !forward;
  return settings;
}

}  // namespace deltapipe
