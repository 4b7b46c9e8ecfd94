// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/algorithms/recommended.hpp"

namespace deltapipe {

CodecSettings recommended_settings(Direction direction) {
  const bool forward = direction == Direction::forward;
  CodecSettings settings;
  settings.kind = forward ? CodecKind::aqsgd : CodecKind::directq;
  settings.scale = ScaleKind::message;
  settings.rms_step = forward ? 1.5 : 0.6;
  settings.tile = 256;
  settings.rounding = forward ? Rounding::nearest : Rounding::stochastic;
  if (!forward) return settings;
  settings.first_visit = FirstVisit::steps;
  settings.first_visit_step = 0.5;
  return settings;
}

}  // namespace deltapipe
