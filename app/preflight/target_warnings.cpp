// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/target_warnings.hpp"

#include <fmt/format.h>

#include <cmath>

#include "comm/pipeline/bit_budget.hpp"
#include "comm/pipeline/pipeline.hpp"

namespace deltapipe {

namespace {

/// Targets are met by their mean; so much is left to the last messages.
constexpr double kTolerance = 0.03;

std::string percent_of_messages(double messages, const StepTotals& totals) {
  return fmt::format("{:.0f} % of the messages had the ", 100 * messages / totals.steered);
}

/// Reason for a missed target: steps are at the end of their range.
std::string reason_of(const StepTarget& target, const StepTotals& totals, bool wants_larger_steps) {
  if (totals.steered == 0)
    return "no message had steps of the RMS: first visits have formats of their own";
  const double stuck = wants_larger_steps ? totals.at_most : totals.at_least;
  if (stuck == 0) return "the run was too short to make up for its first messages";
  return percent_of_messages(stuck, totals) +
         (wants_larger_steps ? fmt::format("largest step, {:g}", target.largest_step)
                             : fmt::format("least step, {:g}", kLeastChosenStep));
}

std::string missed(const std::string& key, double target, int boundary, double reached,
                   const char* unit, const std::string& reason) {
  return fmt::format("{} = {:g} was missed at boundary {}: {:.3g}{}; {}", key, target, boundary,
                     reached, unit, reason);
}

}  // namespace

std::vector<std::string> warnings_of_targets(const Settings& settings,
                                             std::span<const double> step_totals) {
  std::vector<std::string> warnings;
  const PipelineOptions options = pipeline_options(settings);
  for (const bool backward : {false, true})
    for (int boundary = 0; boundary + 1 < settings.pipeline.stages; ++boundary) {
      const StepTarget target = step_target(options, 0, boundary, backward);
      const StepTotals totals = step_totals_of(step_totals, boundary, backward);
      const std::string section = backward ? "boundary.backward" : "boundary.forward";
      if (target.bits > 0 && totals.values > 0) {
        const double bits = totals.bits / totals.values;
        if (std::abs(bits / target.bits - 1) > kTolerance)
          warnings.push_back(missed(section + ".rate", target.bits, boundary, bits,
                                    " bits per value were sent",
                                    reason_of(target, totals, bits > target.bits)));
      }
      // An error below the target is no miss.
      if (target.error > 0 && totals.signal2 > 0) {
        const double error = std::sqrt(totals.error2 / totals.signal2);
        if (error > target.error * (1 + kTolerance))
          warnings.push_back(missed(section + ".quantizer.error", target.error, boundary, error,
                                    " was the relative error", reason_of(target, totals, false)));
      }
    }
  return warnings;
}

namespace {

/// The remedy for an error that is too large.
std::string remedy_of(const CodecSettings& codec, const RateSettings& rate,
                      const std::string& section) {
  if (sends_positions(codec)) return "set a larger " + section + "topk";
  if (rate.has_bits()) return "set a larger " + section + "rate";
  if (rate.target_error > 0)
    return fmt::format("set a smaller {}quantizer.error than {:g}", section, rate.target_error);
  if (codec.rms_step > 0) return "set " + section + "quantizer.error, or a smaller quantizer.step";
  return "set more " + section + "bits";
}

}  // namespace

ErrorWatch::ErrorWatch(const Settings& settings)
    : settings_(settings),
      forward_(static_cast<std::size_t>(settings.pipeline.stages - 1)),
      backward_(forward_.size()) {}

std::vector<std::string> ErrorWatch::look_at(const StepRecord& record) {
  std::vector<std::string> warnings;
  for (const bool backward : {false, true}) {
    const std::vector<double>& errors = (backward ? record.backward : record.forward).error;
    const CodecSettings& codec = backward ? settings_.backward : settings_.forward;
    for (std::size_t b = 0; b < errors.size(); ++b) {
      Seen& seen = (backward ? backward_ : forward_)[b];
      if (std::isnan(errors[b])) continue;  // not measured
      if (errors[b] <= kLargestError) {
        seen.large_since = 0;
      } else if (seen.large_since == 0) {
        seen.large_since = record.step;
      } else if (!seen.is_said) {
        seen.is_said = true;
        const std::string section = backward ? "boundary.backward." : "boundary.forward.";
        warnings.push_back(fmt::format(
            "{} at boundary {} arrive with a relative error of {:.2f} (steps {} to {}), from which "
            "models learn little; {}",
            backward ? "gradients" : "activations", b, errors[b], seen.large_since, record.step,
            remedy_of(codec, backward ? settings_.backward_rate : settings_.forward_rate,
                      section)));
      }
    }
  }
  return warnings;
}

}  // namespace deltapipe
