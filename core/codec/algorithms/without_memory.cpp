// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/algorithms/without_memory.hpp"

#include "core/codec/algorithms/first_visit.hpp"

namespace deltapipe {

CodecSettings without_memory(const CodecSettings& settings, ChangesWithoutMemory changes) {
  CodecSettings plain = settings;
  plain.warmup_epochs = 0;
  plain.error_feedback = false;
  plain.positions = ChosenPositions::largest;
  if (sends_changes(settings)) {
    if (changes == ChangesWithoutMemory::first_visit) return codec::first_visit_settings(plain);
    plain.kind = settings.kind == CodecKind::aqsgd_topk ? CodecKind::topk : CodecKind::directq;
  }
  // Tokens of growing texts cross one at a time. A separate step for each token has the same error.
  if (plain.scale == ScaleKind::message) {
    plain.scale = ScaleKind::tile;
    plain.tile = kWholeRow;
  }
  return plain;
}

bool sends_tokens_alone(const CodecSettings& settings) {
  if (sends_positions(settings)) return false;
  return settings.kind != CodecKind::directq || settings.scale != ScaleKind::channel;
}

}  // namespace deltapipe
