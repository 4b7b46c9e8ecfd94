// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/settings_check.hpp"

#include <fmt/format.h>

#include <string>

#include "core/base/number_text.hpp"

namespace deltapipe {

namespace {

std::string feedback_text(FeedbackKind kind) {
  const char* name = kind == FeedbackKind::ef     ? "ef"
                     : kind == FeedbackKind::ef21 ? "ef21"
                                                  : "mixed";
  return fmt::format("feedback.kind = \"{}\"", name);
}

std::string scale_text(ScaleKind scale) {
  const char* name = scale == ScaleKind::channel ? "channel"
                     : scale == ScaleKind::tile  ? "tile"
                                                 : "message";
  return fmt::format("scale = \"{}\"", name);
}

std::string step_text(double step) {
  return "step = " + number_text("%g", step);
}

/// Returns a contradiction in the scales and codes of directq and aqsgd.
std::optional<Mistake> contradiction_in_scales(const CodecSettings& settings) {
  const bool in_steps = settings.rms_step > 0;
  const std::string scale_and_step =
      scale_text(settings.scale) + ", " + step_text(settings.rms_step);
  if (!in_steps && settings.scale == ScaleKind::message)
    return Mistake{.what = "one step for a whole message is a fraction of its RMS",
                   .value = scale_and_step,
                   .remedy = "set step, for example to 1, or use scale = \"tile\"",
                   .keys = {"quantizer.scale", "quantizer.step"}};
  if (!in_steps) return std::nullopt;
  if (settings.scale == ScaleKind::channel)
    return Mistake{.what =
                       "a scale per channel, over all tokens of a micro-batch, is found from its "
                       "largest value",
                   .value = scale_and_step,
                   .remedy = "use scale = \"tile\", or step = 0",
                   .keys = {"quantizer.scale", "quantizer.step"}};
  if (settings.levels == Levels::asymmetric)
    return Mistake{.what = "steps of a fraction of the RMS always have symmetric levels",
                   .value = step_text(settings.rms_step) + ", levels = \"asymmetric\"",
                   .remedy = "use levels = \"symmetric\"",
                   .keys = {"quantizer.levels", "quantizer.step"}};
  if (settings.rounding == Rounding::stochastic && settings.rms_step > kLargestStochasticStep)
    return Mistake{.what =
                       "with stochastic rounding in steps above 1.9 root mean squares, errors are "
                       "larger than the values",
                   .value = step_text(settings.rms_step) + ", rounding = \"stochastic\"",
                   .remedy = "use rounding = \"nearest\", or a step up to 1.9",
                   .keys = {"quantizer.step", "quantizer.rounding"}};
  return std::nullopt;
}

}  // namespace

std::optional<Mistake> contradiction_in(const CodecSettings& settings) {
  if (settings.kind == CodecKind::none) return std::nullopt;  // other settings have no effect
  const bool delta = sends_changes(settings);
  const bool half = settings.kind == CodecKind::fp16 || settings.kind == CodecKind::bf16;
  if (settings.error_feedback && (delta || half))
    return Mistake{.what = delta ? "AQ-SGD's next change has what rounding left out already"
                                 : "16-bit values are sent without error feedback",
                   .value = feedback_text(settings.feedback_kind),
                   .remedy = "set feedback.kind = \"none\", or use codec = \"directq\" or \"topk\"",
                   .keys = {"feedback.kind"}};
  if (settings.kind == CodecKind::directq && settings.error_feedback &&
      settings.feedback_kind == FeedbackKind::mixed)
    return Mistake{.what =
                       "mixed error feedback divides the positions that topk sends between "
                       "values and errors, and directq sends all",
                   .value = "feedback.kind = \"mixed\"",
                   .remedy = "use feedback.kind = \"ef\" or \"ef21\", or codec = \"topk\"",
                   .keys = {"feedback.kind"}};
  if (settings.positions == ChosenPositions::forward && settings.kind != CodecKind::topk)
    return Mistake{.what = "only topk sends values at the positions of activations",
                   .value = "positions = \"forward\"",
                   .remedy = "use codec = \"topk\", or positions = \"largest\"",
                   .keys = {"sparse.positions"}};
  if (follows_forward(settings) && settings.error_feedback &&
      settings.feedback_kind == FeedbackKind::mixed)
    return Mistake{
        .what =
            "mixed error feedback divides positions between values and errors, and those "
            "of activations are given",
        .value = "positions = \"forward\", feedback.kind = \"mixed\"",
        .remedy = "use feedback.kind = \"ef\" or \"ef21\"",
        .keys = {"sparse.positions", "feedback.kind"}};
  if (sends_positions(settings) && settings.values == ChosenValues::codes &&
      settings.scale != ScaleKind::tile)
    return Mistake{.what =
                       "the values that topk chooses have no tokens and channels to share a "
                       "scale",
                   .value = scale_text(settings.scale),
                   .remedy = "use scale = \"tile\": a scale for every `tile` chosen values",
                   .keys = {"quantizer.scale"}};
  if (settings.rms_step > 0 && sends_positions(settings))
    return Mistake{.what =
                       "steps of a fraction of the RMS require entropy coding, and the values that "
                       "topk chooses are sent without it",
                   .value = step_text(settings.rms_step),
                   .remedy = "use step = 0, or codec = \"directq\" or \"aqsgd\"",
                   .keys = {"quantizer.step"}};
  if (settings.entropy_coding && (half || sends_positions(settings)))
    return Mistake{.what = half ? "16-bit values are sent without entropy coding"
                                : "the values that topk chooses are sent without entropy coding",
                   .value = "entropy_coding = true",
                   .remedy =
                       "set entropy_coding = false, or use codec = \"directq\" or "
                       "\"aqsgd\"",
                   .keys = {"quantizer.entropy_coding"}};
  if (settings.kind == CodecKind::aqsgd_topk && settings.first_visit == FirstVisit::steps)
    return Mistake{.what =
                       "first visits in steps of the RMS require entropy coding, which codec = "
                       "\"aqsgd_topk\" does not have",
                   .value = "first_visit = \"steps\"",
                   .remedy = "use first_visit = \"quantize8\", or codec = \"aqsgd\"",
                   .keys = {"memory.first_visit", "codec"}};
  if (!sends_codes(settings)) return std::nullopt;
  return contradiction_in_scales(settings);
}

}  // namespace deltapipe
