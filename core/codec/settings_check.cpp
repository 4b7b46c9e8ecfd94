// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/settings_check.hpp"

namespace deltapipe {

std::optional<Mistake> contradiction_in(const CodecSettings& settings) {
  const bool delta = sends_changes(settings);
  const bool half = settings.kind == CodecKind::fp16 || settings.kind == CodecKind::bf16;
  if (settings.error_feedback && (delta || half))
    return Mistake{.what = delta ? "a delta codec's next change has what rounding left out already"
                                 : "16-bit values are sent without error feedback",
                   .value = "error_feedback = true",
                   .remedy =
                       "set error_feedback = false, or use codec = \"quantize\" or "
                       "\"topk\""};
  const bool ef21 = settings.error_feedback && settings.feedback_kind == FeedbackKind::ef21;
  if (settings.kind == CodecKind::quantize && settings.error_feedback &&
      settings.feedback_kind == FeedbackKind::mixed)
    return Mistake{.what =
                       "mixed error feedback divides the positions that topk sends between "
                       "values and errors, and quantize sends all",
                   .value = "error_feedback = \"mixed\"",
                   .remedy = "use error_feedback = \"ef\" or \"ef21\", or codec = \"topk\""};
  if (sends_positions(settings) && settings.values == ChosenValues::codes &&
      settings.scale != ScaleKind::tile)
    return Mistake{
        .what =
            "the values that topk chooses have no tokens and channels to share a "
            "scale",
        .value = settings.scale == ScaleKind::token ? "scale = \"token\"" : "scale = \"channel\"",
        .remedy = "use scale = \"tile\": a scale for every `tile` chosen values"};
  if (settings.bits != 1 || !sends_codes(settings)) return std::nullopt;
  if (settings.levels == Levels::asymmetric)
    return Mistake{.what =
                       "the asymmetric levels of one bit are -1 and 0, which no positive value "
                       "crosses with",
                   .value = "bits = 1, levels = \"asymmetric\"",
                   .remedy =
                       "use levels = \"symmetric\", which sends signs and a mean magnitude, "
                       "or 2 bits or more"};
  // Codes are plus and minus the largest change, so that a small change becomes a large error,
  // which is the next change. With error feedback the same is so of errors.
  if (settings.error_feedback && !ef21 && settings.rounding == Rounding::stochastic)
    return Mistake{.what =
                       "one-bit values with stochastic rounding miss by up to twice the largest "
                       "value: with error feedback errors grow without end",
                   .value = "bits = 1, rounding = \"stochastic\", error_feedback = true",
                   .remedy = "use rounding = \"nearest\", or 2 bits or more"};
  if ((delta || ef21) && settings.rounding == Rounding::stochastic)
    return Mistake{.what =
                       "one-bit changes with stochastic rounding miss by up to twice the "
                       "largest change: memories drift away instead of settling",
                   .value = "bits = 1, rounding = \"stochastic\"",
                   .remedy = "use rounding = \"nearest\", or 3 bits or more"};
  return std::nullopt;
}

}  // namespace deltapipe
