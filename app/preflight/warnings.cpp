// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/warnings.hpp"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "app/preflight/step_programs.hpp"
#include "comm/pipeline/bit_budget.hpp"
#include "comm/pipeline/pipeline.hpp"
#include "comm/schedule/schedule.hpp"
#include "core/base/number_text.hpp"
#include "core/base/printable.hpp"
#include "core/codec/algorithms/recommended.hpp"
#include "core/kernels/gemm/bf16_gemm.hpp"
#include "core/text/tokenizer_files.hpp"

namespace deltapipe {

namespace {

/// Two visits of a sample drop different values, and their difference is what aqsgd sends.
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

std::vector<std::string> warnings_of_precision(const Settings& settings,
                                               const EmulatingRanks& ranks) {
  if (settings.training.precision != ProductPrecision::bf16 || ranks.count == 0) return {};
  const std::string where =
      ranks.count == ranks.all
          ? "here"
          : "on " + std::to_string(ranks.count) + " of " + std::to_string(ranks.all) + " ranks";
  const std::string reason = fast_bf16_gemm_obstacle();
  return {"training.precision = \"bf16\" is emulated " + where + ", slower than \"fp32\"" +
          (reason.empty() ? "; use nodes of one kind, with oneDNN on all of them" : ": " + reason)};
}

EmulatingRanks emulating_ranks(const Settings& settings) {
  const bool emulates =
      settings.training.precision == ProductPrecision::bf16 && !has_fast_bf16_gemm();
  return {.count = emulates ? 1 : 0, .all = 1};
}

std::vector<std::string> warnings_of_network(const NetworkSettings& network) {
  constexpr double kLeastBandwidth = 1e4, kLargestLatency = 1;
  std::vector<std::string> warnings;
  const auto look = [&](const std::vector<LinkSettings>& links, const std::string& section) {
    double bandwidth = 0, latency = 0;  // the first doubtful ones
    for (const LinkSettings& link : links) {
      const double bits = link.bits_per_second;
      if (bandwidth == 0 && bits > 0 && bits < kLeastBandwidth) bandwidth = bits;
      if (latency == 0 && link.latency_seconds >= kLargestLatency) latency = link.latency_seconds;
    }
    if (bandwidth > 0) {
      const std::string number = number_text("%g", bandwidth);
      warnings.push_back(section + ".bandwidth is " + number +
                         " bit/s: a number without a unit counts bits per second; write \"" +
                         number + " Mbit/s\" for megabits");
    }
    if (latency > 0) {
      const std::string number = number_text("%g", latency);
      warnings.push_back(section + ".latency is " + number +
                         " s: a number without a unit counts seconds; write \"" + number +
                         " ms\" for milliseconds");
    }
  };
  if (!network.ranks.empty() || network.forward == network.backward) {
    look(network.ranks.empty() ? network.forward : network.ranks, "network");
  } else {
    look(network.forward, "network.forward");
    look(network.backward, "network.backward");
  }
  look({network.replicas}, "network.replicas");
  return warnings;
}

std::vector<std::string> warnings_of_model(const Settings& settings, const ModelShape& model) {
  std::vector<std::string> warnings;
  if (model.normalized_rows * settings.training.micro_batch_size == 1)
    warnings.emplace_back(
        "the last layers normalize one value for each channel, because training.micro_batch_size "
        "is 1 and their images have one pixel: they do not learn; set training.micro_batch_size "
        "to 2 or more");
  const int padding = settings.data.images.padding;
  if (const int side = std::min(model.image.height, model.image.width); side > 0 && padding >= side)
    warnings.push_back("data.images.padding = " + std::to_string(padding) +
                       " is not smaller than " + text_of(model.image) +
                       ", the size of the images: many crops have no pixel of their image");
  return warnings;
}

std::vector<std::string> warnings_of_bubble(const Settings& settings) {
  constexpr double kMostIdle = 0.4;
  const PipelineSettings& p = settings.pipeline;
  const double idle =
      p.stages == 1 ? 0 : find_schedule(p.schedule).bubble_fraction(step_shape(settings, 0));
  if (idle <= kMostIdle) return {};
  return {"with training.micro_batches = " + std::to_string(settings.training.micro_batches) +
          " the " + std::to_string(p.stages) + " stages wait for each other for " +
          number_text("%.0f", 100 * idle) + " % of a step; set it to " +
          std::to_string(4 * p.stages) +
          " or so, with a smaller micro_batch_size to keep the batch"};
}

std::vector<std::string> warnings_of_steps(const Settings& settings, std::uint64_t steps) {
  std::vector<std::string> warnings;
  if (const std::uint64_t step = settings.output.trace_step; step > steps)
    warnings.push_back("output.trace_step is " + std::to_string(step) +
                       " and the run ends after step " + std::to_string(steps) +
                       ": no trace.json is written; choose a step up to that");
  const ReplicaSettings& replicas = settings.replicas;
  if (settings.pipeline.replicas == 1 || replicas.codec != ReplicaCodec::topk) return warnings;
  // Below, the validation loss of small models was more than 5 % above that of other codecs.
  constexpr double kLeastTimes = 0.5;
  const std::uint64_t sums = replicas.sums_until(steps, steps);
  const double times = static_cast<double>(sums) * replicas.topk;
  if (times < kLeastTimes)
    warnings.push_back("replicas.topk = " + number_text("%g", replicas.topk) +
                       " sends each value " + number_text("%.2g", times) +
                       " times on average in the " + std::to_string(sums) +
                       " sums of the run: much of what replicas learn is lost; set a larger topk, "
                       "or codec = \"quantized\"");
  else if (replicas.local_steps == 0)
    warnings.emplace_back(
        "replicas.codec = \"topk\" is meant for local steps: in sums of every step models learn "
        "more slowly; set replicas.local_steps, or codec = \"quantized\"");
  return warnings;
}

std::vector<std::string> warnings_of_untrained(const Settings& settings) {
  if (!settings.model.path.empty()) return {};
  const std::string trained = model_directory(settings);
  std::error_code error;
  const bool is_there = std::filesystem::is_directory(trained, error);
  return {
      "no model.path is set: these are the initial weights of a new model, which nothing has "
      "trained; set model.path" +
      (is_there ? "=" + printable(trained, 200) : " to the directory of a trained model")};
}

namespace {

/// Keys of answers that were set where nothing is compared; empty: none.
std::string idle_keys_of_answers(const AnswerSettings& answers) {
  if (!answers.files.empty()) return "";
  const AnswerSettings usual;
  std::string keys;
  for (const auto& [key, is_set] :
       {std::pair{"prompt_field", answers.prompt_field != usual.prompt_field},
        std::pair{"answer_field", answers.answer_field != usual.answer_field},
        std::pair{"answer_end", answers.end != usual.end}})
    if (is_set) keys += (keys.empty() ? "evaluation." : ", evaluation.") + std::string(key);
  return keys;
}

std::vector<std::string> warnings_of_codec_evaluation(const Settings& settings) {
  if (!settings.evaluation.has(EvaluationMode::codec)) return {};
  const CodecKind kind = without_memory(settings.forward, settings.evaluation.changes).kind;
  std::string why;
  if (settings.pipeline.stages == 1)
    why = "one stage has no boundary; use more stages";
  else if (sends_changes(settings.forward) && kind == CodecKind::none)
    why =
        "boundary.forward.memory.first_visit = \"fp32\" is what a sample without memory is sent "
        "by; "
        "choose another one or evaluation.changes = \"direct\"";
  else if (kind == CodecKind::none)
    why = "boundary.forward.codec sends fp32; choose another one";
  if (why.empty()) return {};
  return {"evaluations through the codec are those of fp32 here: " + why +
          " or evaluation.boundary = \"fp32\""};
}

}  // namespace

std::vector<std::string> warnings_of_evaluation(const Settings& settings) {
  std::vector<std::string> warnings = warnings_of_codec_evaluation(settings);
  if (const std::string keys = idle_keys_of_answers(settings.data.answers); !keys.empty())
    warnings.push_back(keys +
                       ": without effect, no answers are compared; name files in "
                       "evaluation.prompts");
  return warnings;
}

std::vector<std::string> warnings_of_links(const Settings& settings) {
  namespace fs = std::filesystem;
  std::set<std::string> warnings;
  const auto look = [&](const std::string& directory, bool tokenizer_only) {
    std::error_code error;
    for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
         entry.increment(error)) {
      std::error_code ignored;
      const std::string name = entry->path().filename().string();
      if (tokenizer_only && !is_tokenizer_file(name)) continue;
      if (entry->is_symlink(ignored) && !entry->exists(ignored))
        warnings.insert(printable(entry->path().string(), 200) + " is a link to " +
                        printable(fs::read_symlink(entry->path(), ignored).string(), 200) +
                        ", which is missing: the file is passed over");
    }
  };
  if (!settings.model.path.empty()) look(settings.model.path, false);
  if (!settings.tokenizer.path.empty()) {
    const fs::path path(settings.tokenizer.path);
    std::error_code error;
    look(fs::is_directory(path, error) ? path.string() : (path.parent_path() / "").string(), true);
  }
  return {warnings.begin(), warnings.end()};
}

namespace {

/// A setting of a boundary: whether it has another value than where nothing was said of it, and
/// what it takes to have an effect.
struct Idle {
  const char* key;
  bool is_idle;
  std::string wants;
};

std::vector<Idle> idle_settings(const CodecSettings& codec, const RateSettings& rate,
                                const NetworkSettings& network, Direction direction) {
  const CodecSettings usual, preset = recommended_settings(direction);
  const auto changed = [&](auto member) {
    return codec.*member != usual.*member && codec.*member != preset.*member;
  };
  const bool codes = sends_codes(codec), positions = sends_positions(codec);
  const bool changes = sends_changes(codec);
  const bool first_tiles = changes && codec.first_visit != FirstVisit::fp32;
  const std::string any_codes =
      "codec = \"directq\" or \"aqsgd\", or sparse.values = \"codes\" with \"topk\"";
  const std::string any_topk = "codec = \"topk\" or \"aqsgd_topk\"";
  const bool has_links =
      !network.forward.empty() || !network.backward.empty() || !network.ranks.empty();
  return {
      {"topk", changed(&CodecSettings::topk) && !positions, any_topk},
      {"sparse.values", changed(&CodecSettings::values) && !positions, any_topk},
      {"bits", changed(&CodecSettings::bits) && (!codes || codec.rms_step > 0),
       codes ? "quantizer.step = 0 and no rate" : any_codes},
      {"quantizer.scale", changed(&CodecSettings::scale) && !codes, any_codes},
      {"quantizer.tile",
       changed(&CodecSettings::tile) && !first_tiles && !(codes && codec.scale == ScaleKind::tile),
       codes ? "quantizer.scale = \"tile\"" : any_codes},
      {"quantizer.step", changed(&CodecSettings::rms_step) && !codes, any_codes},
      {"quantizer.rounding", changed(&CodecSettings::rounding) && !codes, any_codes},
      {"quantizer.levels", changed(&CodecSettings::levels) && !codes, any_codes},
      {"memory.first_visit", changed(&CodecSettings::first_visit) && !changes,
       "codec = \"aqsgd\" or \"aqsgd_topk\""},
      {"memory.first_visit_step",
       changed(&CodecSettings::first_visit_step) &&
           codec.first_visit_step != first_visit_step_of(rate.target_error) &&
           !(changes && codec.first_visit == FirstVisit::steps),
       "memory.first_visit = \"steps\""},
      {"feedback.of", changed(&CodecSettings::feedback_of) && !has_feedback(codec),
       "feedback.kind"},
      {"quantizer.budget", rate.budget == BudgetSharing::time && !(rate.has_bits() && has_links),
       rate.has_bits() ? "a network.bandwidth" : "rate"},
  };
}

/// True if no direction holds the error that codec = "auto" derives from boundary.error.
bool is_error_idle(const Settings& settings) {
  const double error = settings.auto_error;
  const auto is_held = [error](const RateSettings& rate, Direction direction) {
    return rate.target_error == recommended_target(direction, error);
  };
  return error != kRecommendedError && !is_held(settings.forward_rate, Direction::forward) &&
         !is_held(settings.backward_rate, Direction::backward);
}

/// Returns the settings that boundary.move_memories lacks; empty: it has an effect.
std::string missing_for_moves(const Settings& settings) {
  if (settings.data.kind != DataKind::images) return "data.kind = \"images\"";
  if (!pipeline_options(settings).moves.has_any())
    return settings.move_memories == MovedBy::crops ? "data.images.padding"
                                                    : "data.images.padding or data.images.flip";
  if (!has_memory_of_samples(settings.forward) && !has_memory_of_samples(settings.backward))
    return "boundary.forward.codec = \"aqsgd\" or \"aqsgd_topk\", or feedback.kind with "
           "feedback.of = \"sample\"";
  return {};
}

}  // namespace

std::vector<std::string> warnings_without_effect(const Settings& settings) {
  std::vector<std::string> warnings;
  if (settings.data.images.padding > 0 && settings.data.kind != DataKind::images)
    warnings.emplace_back("data.images.padding has no effect: it requires data.kind = \"images\"");
  const ReplicaSettings& replicas = settings.replicas;
  if (replicas.topk != ReplicaSettings().topk && replicas.codec != ReplicaCodec::topk)
    warnings.emplace_back("replicas.topk has no effect: it requires replicas.codec = \"topk\"");
  if (replicas.bits != ReplicaSettings().bits && !has_errors(replicas.codec))
    warnings.emplace_back(
        "replicas.bits has no effect: it requires replicas.codec = \"quantized\", \"topk\" or "
        "\"adam_moment\"");
  if (settings.pipeline.stages == 1) return warnings;
  if (is_error_idle(settings))
    warnings.emplace_back(
        "boundary.error has no effect: it requires codec = \"auto\" in boundary.forward or "
        "boundary.backward, without rate or quantizer.error there");
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const bool forward = direction == Direction::forward;
    const CodecSettings& codec = forward ? settings.forward : settings.backward;
    if (codec.kind == CodecKind::none) continue;
    const std::string section = std::string("boundary.") + name_of(direction) + ".";
    for (const Idle& idle :
         idle_settings(codec, forward ? settings.forward_rate : settings.backward_rate,
                       settings.network, direction))
      if (idle.is_idle)
        warnings.push_back(section + idle.key + " has no effect: it requires " + idle.wants);
  }
  if (settings.move_memories != MovedBy::nothing)
    if (const std::string missing = missing_for_moves(settings); !missing.empty())
      warnings.push_back("boundary.move_memories has no effect: it requires " + missing);
  if (settings.evaluation.changes != EvaluationSettings().changes) {
    std::string wants;
    if (!settings.evaluation.has(EvaluationMode::codec))
      wants = "evaluation.boundary = \"codec\" or \"both\"";
    else if (settings.forward.kind != CodecKind::none && !sends_changes(settings.forward))
      wants = "boundary.forward.codec = \"aqsgd\" or \"aqsgd_topk\"";
    if (!wants.empty())
      warnings.push_back("evaluation.changes has no effect: it requires " + wants);
  }
  return warnings;
}

namespace {

/// Targets are met by their mean; so much is left to the last messages.
constexpr double kTolerance = 0.03;

std::string percent_of_messages(double messages, const StepTotals& totals) {
  return number_text("%.0f", 100 * messages / totals.steered) + " % of the messages had the ";
}

/// Reason for a missed target: steps are at the end of their range.
std::string reason_of(const StepTarget& target, const StepTotals& totals, bool wants_larger_steps) {
  if (totals.steered == 0)
    return "no message had steps of the RMS: first visits have formats of their own";
  const double stuck = wants_larger_steps ? totals.at_most : totals.at_least;
  if (stuck == 0) return "the run was too short to make up for its first messages";
  return percent_of_messages(stuck, totals) +
         (wants_larger_steps ? "largest step, " + number_text("%g", target.largest_step)
                             : "least step, " + number_text("%g", kLeastChosenStep));
}

std::string missed(const std::string& key, double target, int boundary, double reached,
                   const char* unit, const std::string& reason) {
  return key + " = " + number_text("%g", target) + " was missed at boundary " +
         std::to_string(boundary) + ": " + number_text("%.3g", reached) + unit + "; " + reason;
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
    return "set a smaller " + section + "quantizer.error than " +
           number_text("%g", rate.target_error);
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
        warnings.push_back(
            (backward ? "gradients" : "activations") + std::string(" at boundary ") +
            std::to_string(b) + " arrive with a relative error of " +
            number_text("%.2f", errors[b]) + " (steps " + std::to_string(seen.large_since) +
            " to " + std::to_string(record.step) + "), from which models learn little; " +
            remedy_of(codec, backward ? settings_.backward_rate : settings_.forward_rate, section));
      }
    }
  }
  return warnings;
}

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings)
    std::fprintf(stderr, "deltapipe: warning: %s\n", warning.c_str());
}

}  // namespace deltapipe
