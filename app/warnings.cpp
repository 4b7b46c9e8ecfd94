// SPDX-License-Identifier: BSD-3-Clause
#include "app/warnings.hpp"

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/base/number_text.hpp"
#include "core/base/printable.hpp"

namespace deltapipe {

namespace {

/// Two visits of a sample drop different values, and their difference is what delta sends.
std::string dropout_warning(const std::string& codec, const DropoutProbabilities& dropout) {
  std::string given, remedy;
  for (const auto& [name, probability] : {std::pair{"dropout_embedding", dropout.embedding},
                                          std::pair{"dropout_attention", dropout.attention},
                                          std::pair{"dropout_residual", dropout.residual}}) {
    if (probability <= 0) continue;
    given += (given.empty() ? "" : ", ") + std::string(name) + " " + number_text("%g", probability);
    remedy += (remedy.empty() ? "model." : ", model.") + std::string(name) + " = 0";
  }
  if (given.empty()) return given;
  return "with dropout (" + given +
         ") a sample's activation differs between visits by more than training changes it, and "
         "codec " +
         codec + " sends that difference; set " + remedy;
}

}  // namespace

std::vector<std::string> warnings_of(const Settings& settings,
                                     const DropoutProbabilities& dropout) {
  std::vector<std::string> warnings;
  const CodecSettings& forward = settings.forward;
  if (has_shared_memory(forward) && settings.pipeline.stages > 1) {
    std::string warning =
        dropout_warning(kCodecKindNames[static_cast<std::size_t>(forward.kind)], dropout);
    if (!warning.empty()) warnings.push_back(std::move(warning));
  }
  return warnings;
}

std::vector<std::string> warnings_of_steps(const OutputSettings& output, std::uint64_t steps) {
  if (output.trace_step <= steps) return {};
  return {"output.trace_step is " + std::to_string(output.trace_step) +
          " and the run ends after step " + std::to_string(steps) +
          ": no trace.json is written; choose a step up to that"};
}

std::vector<std::string> warnings_of_untrained(const Settings& settings) {
  if (!settings.model.path.empty()) return {};
  const std::string trained = settings.output.directory + "/model";
  std::error_code error;
  const bool is_there = std::filesystem::is_directory(trained, error);
  return {
      "no model.path is set: these are the initial weights of a new model, which nothing has "
      "trained; set model.path" +
      (is_there ? "=" + printable(trained, 200) : " to the directory of a trained model")};
}

std::vector<std::string> warnings_of_evaluation(const Settings& settings) {
  if (!settings.evaluation.has(EvaluationMode::codec)) return {};
  const CodecKind kind = without_memory(settings.forward, settings.evaluation.changes).kind;
  std::string why;
  if (settings.pipeline.stages == 1)
    why = "one stage has no boundary; use more stages";
  else if (sends_changes(settings.forward) && kind == CodecKind::none)
    why =
        "boundary.forward.first_visit = \"fp32\" is what a sample without memory is sent by; "
        "choose another one or evaluation.changes = \"direct\"";
  else if (kind == CodecKind::none || kind == CodecKind::row_sparse)
    why = "boundary.forward.codec sends fp32; choose another one";
  if (why.empty()) return {};
  return {"evaluations through the codec are those of fp32 here: " + why +
          " or evaluation.boundary = \"fp32\""};
}

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings)
    std::fprintf(stderr, "deltapipe: warning: %s\n", warning.c_str());
}

}  // namespace deltapipe
