// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/settings_check.hpp"

#include <string>

#include "core/base/number_text.hpp"

namespace deltapipe {

namespace {

std::string feedback_text(FeedbackKind kind) {
  const char* name = kind == FeedbackKind::ef     ? "ef"
                     : kind == FeedbackKind::ef21 ? "ef21"
                                                  : "mixed";
  return std::string("error_feedback = \"") + name + "\"";
}

std::string scale_text(ScaleKind scale) {
  const char* name = scale == ScaleKind::channel ? "channel"
                     : scale == ScaleKind::tile ? "tile"
                                                : "message";
  return std::string("scale = \"") + name + "\"";
}

std::string text_of_scales(const CodecSettings& settings) {
  const char* rule = settings.scale_rule == ScaleRule::max ? "max" : "rms";
  return scale_text(settings.scale) + ", scale_rule = \"" + rule + "\"";
}

/// Contradiction in the scales and codes of quantize and delta.
std::optional<Mistake> contradiction_in_scales(const CodecSettings& settings) {
  const bool rms = settings.scale_rule == ScaleRule::rms;
  const bool stochastic = settings.rounding == Rounding::stochastic;
  if (rms && !settings.entropy_coding)
    return Mistake{.what =
                       "steps of a fraction of the RMS have as many levels as values need: only "
                       "entropy coding makes few bits of them",
                   .value = "scale_rule = \"rms\", entropy_coding = false",
                   .remedy = "set entropy_coding = true, or use scale_rule = \"max\"",
                   .keys = {"scale_rule", "entropy_coding"}};
  if (!rms && settings.scale == ScaleKind::message)
    return Mistake{.what = "one step for a whole message is a fraction of its RMS",
                   .value = text_of_scales(settings),
                   .remedy = "use scale_rule = \"rms\", or scale = \"tile\"",
                   .keys = {"scale", "scale_rule"}};
  if (rms && settings.scale == ScaleKind::channel)
    return Mistake{.what =
                       "a scale per channel, over all tokens of a micro-batch, is found from its "
                       "largest value",
                   .value = text_of_scales(settings),
                   .remedy = "use scale = \"tile\", or scale_rule = \"max\"",
                   .keys = {"scale", "scale_rule"}};
  if (rms && settings.levels == Levels::asymmetric)
    return Mistake{.what = "steps of a fraction of the RMS cut no level off",
                   .value = "scale_rule = \"rms\", levels = \"asymmetric\"",
                   .remedy = "use levels = \"symmetric\"",
                   .keys = {"levels", "scale_rule"}};
  if (rms && stochastic && settings.rms_step > kLargestStochasticStep)
    return Mistake{.what =
                       "with stochastic rounding in steps above 1.9 root mean squares values err "
                       "by more than they are",
                   .value = "rms_step = " + number_text("%g", settings.rms_step) +
                            ", rounding = \"stochastic\"",
                   .remedy = "use rounding = \"nearest\", or rms_step up to 1.9",
                   .keys = {"rms_step", "rounding"}};
  return std::nullopt;
}

}  // namespace

std::optional<Mistake> contradiction_in(const CodecSettings& settings) {
  if (settings.kind == CodecKind::none) return std::nullopt;  // other settings wait for a codec
  const bool delta = sends_changes(settings);
  const bool half = settings.kind == CodecKind::fp16 || settings.kind == CodecKind::bf16;
  if (settings.error_feedback && (delta || half))
    return Mistake{.what = delta ? "a delta codec's next change has what rounding left out already"
                                 : "16-bit values are sent without error feedback",
                   .value = feedback_text(settings.feedback_kind),
                   .remedy =
                       "set error_feedback = false, or use codec = \"quantize\" or "
                       "\"topk\""};
  if (settings.kind == CodecKind::quantize && settings.error_feedback &&
      settings.feedback_kind == FeedbackKind::mixed)
    return Mistake{.what =
                       "mixed error feedback divides the positions that topk sends between "
                       "values and errors, and quantize sends all",
                   .value = "error_feedback = \"mixed\"",
                   .remedy = "use error_feedback = \"ef\" or \"ef21\", or codec = \"topk\""};
  if (settings.positions == ChosenPositions::forward && settings.kind != CodecKind::topk)
    return Mistake{.what = "only topk sends values at the positions of activations",
                   .value = "positions = \"forward\"",
                   .remedy = "use codec = \"topk\", or positions = \"largest\"",
                   .keys = {"positions"}};
  if (follows_forward(settings) && settings.error_feedback &&
      settings.feedback_kind == FeedbackKind::mixed)
    return Mistake{
        .what =
            "mixed error feedback divides positions between values and errors, and those "
            "of activations are given",
        .value = "positions = \"forward\", error_feedback = \"mixed\"",
        .remedy = "use error_feedback = \"ef\" or \"ef21\"",
        .keys = {"positions", "error_feedback"}};
  if (sends_positions(settings) && settings.values == ChosenValues::codes &&
      settings.scale != ScaleKind::tile)
    return Mistake{.what =
                       "the values that topk chooses have no tokens and channels to share a "
                       "scale",
                   .value = scale_text(settings.scale),
                   .remedy = "use scale = \"tile\": a scale for every `tile` chosen values"};
  if (settings.scale_rule == ScaleRule::rms && sends_positions(settings))
    return Mistake{.what =
                       "steps of a fraction of the RMS want entropy coding, without which the "
                       "values that topk chooses are sent",
                   .value = "scale_rule = \"rms\"",
                   .remedy =
                       "use scale_rule = \"max\", or codec = \"quantize\" or \"delta\"",
                   .keys = {"scale_rule"}};
  if (settings.entropy_coding && (half || sends_positions(settings)))
    return Mistake{.what = half ? "16-bit values are sent without entropy coding"
                                : "the values that topk chooses are sent without entropy coding",
                   .value = "entropy_coding = true",
                   .remedy =
                       "set entropy_coding = false, or use codec = \"quantize\" or "
                       "\"delta\"",
                   .keys = {"entropy_coding"}};
  if (settings.prediction != Prediction::none && settings.kind != CodecKind::delta)
    return Mistake{.what = "only changes that travel as codes are predicted",
                   .value = std::string("codec = \"") +
                            kCodecKindNames[static_cast<std::size_t>(settings.kind)] +
                            "\", prediction = \"linear\"",
                   .remedy = "set prediction = \"none\", or use codec = \"delta\"",
                   .keys = {"prediction", "codec"}};
  if (delta && settings.first_visit == FirstVisit::steps && !settings.entropy_coding)
    return Mistake{.what =
                       "first visits in steps of a fraction of the RMS have as many levels as "
                       "values need: only entropy coding makes few bits of them",
                   .value = "first_visit = \"steps\", entropy_coding = false",
                   .remedy = settings.kind == CodecKind::delta
                                 ? "set entropy_coding = true, or use first_visit = \"quantize8\""
                                 : "use first_visit = \"quantize8\", or codec = \"delta\"",
                   .keys = {"first_visit", "entropy_coding"}};
  if (!sends_codes(settings)) return std::nullopt;
  return contradiction_in_scales(settings);
}

}  // namespace deltapipe
