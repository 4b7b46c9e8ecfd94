// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/warnings.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "app/preflight/step_programs.hpp"
#include "comm/pipeline/pipeline.hpp"
#include "comm/schedule/schedule.hpp"
#include "core/base/printable.hpp"
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
    given += fmt::format("{}{} {:g}", given.empty() ? "" : ", ", name, probability);
    remedy += fmt::format("{}{} = 0", remedy.empty() ? "model." : ", model.", name);
  }
  if (given.empty()) return given;
  return fmt::format(
      "with dropout ({}) a sample's activation differs between visits by more than training "
      "changes it, and codec {} sends that difference; set {}",
      given, codec, remedy);
}

/// Returns true for a bandwidth so small that a unit was probably forgotten; 0 has no limit.
bool is_doubtful(double bits_per_second) {
  return bits_per_second > 0 && bits_per_second < 1e4;
}

std::string bandwidth_warning(const std::string& key_has, double bandwidth) {
  return fmt::format(
      "{0} {1:g} bit/s, which is slow; a number without a unit counts bits per second: write "
      "\"{1:g} Mbit/s\" for megabits",
      key_has, bandwidth);
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
      ranks.count == ranks.all ? "here" : fmt::format("on {} of {} ranks", ranks.count, ranks.all);
  const std::string reason = fast_bf16_gemm_obstacle();
  return {fmt::format(
      "training.precision = \"bf16\" is emulated {}, slower than \"fp32\"{}", where,
      reason.empty() ? "; use nodes of one kind, with oneDNN on all of them" : ": " + reason)};
}

EmulatingRanks emulating_ranks(const Settings& settings) {
  const bool emulates =
      settings.training.precision == ProductPrecision::bf16 && !has_fast_bf16_gemm();
  return {.count = emulates ? 1 : 0, .all = 1};
}

std::vector<std::string> warnings_of_bandwidths(const std::vector<double>& bandwidths) {
  for (const double bandwidth : bandwidths)
    if (is_doubtful(bandwidth)) return {bandwidth_warning("plan.bandwidths has", bandwidth)};
  return {};
}

std::vector<std::string> warnings_of_network(const NetworkSettings& network) {
  constexpr double kLargestLatency = 1;
  std::vector<std::string> warnings;
  const auto look = [&](const std::vector<LinkSettings>& links, const std::string& section) {
    double bandwidth = 0, latency = 0;  // the first doubtful ones
    for (const LinkSettings& link : links) {
      const double bits = link.bits_per_second;
      if (bandwidth == 0 && is_doubtful(bits)) bandwidth = bits;
      if (latency == 0 && link.latency_seconds >= kLargestLatency) latency = link.latency_seconds;
    }
    if (bandwidth > 0) warnings.push_back(bandwidth_warning(section + ".bandwidth is", bandwidth));
    if (latency > 0)
      warnings.push_back(
          fmt::format("{0}.latency is {1:g} s: a number without a unit counts seconds; write "
                      "\"{1:g} ms\" for milliseconds",
                      section, latency));
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
    warnings.push_back(
        fmt::format("data.images.padding = {} is not smaller than {}, the size of the "
                    "images: many crops have no pixel of their image",
                    padding, text_of(model.image)));
  return warnings;
}

std::vector<std::string> warnings_of_bubble(const Settings& settings) {
  constexpr double kMostIdle = 0.4;
  const PipelineSettings& p = settings.pipeline;
  const double idle =
      p.stages == 1 ? 0 : find_schedule(p.schedule).bubble_fraction(step_shape(settings, 0));
  const int advised = 4 * p.stages;
  if (idle <= kMostIdle || settings.training.micro_batches >= advised) return {};
  return {fmt::format(
      "with training.micro_batches = {} the {} stages wait for each other for {:.0f} % of a "
      "step; set it to {} or so, with a smaller micro_batch_size to keep the batch",
      settings.training.micro_batches, p.stages, 100 * idle, advised)};
}

std::vector<std::string> warnings_of_steps(const Settings& settings, std::uint64_t steps) {
  std::vector<std::string> warnings;
  if (const std::uint64_t step = settings.output.trace_step; step > steps)
    warnings.push_back(
        fmt::format("output.trace_step is {} and the run ends after step {}: no trace.json "
                    "is written; choose a step up to that",
                    step, steps));
  const ReplicaSettings& replicas = settings.replicas;
  if (settings.pipeline.replicas == 1 || replicas.codec != ReplicaCodec::topk) return warnings;
  // Below, the validation loss of small models was more than 5 % above that of other codecs.
  constexpr double kLeastTimes = 0.5;
  const std::uint64_t sums = replicas.sums_until(steps, steps);
  const double times = static_cast<double>(sums) * replicas.topk;
  if (times < kLeastTimes)
    warnings.push_back(fmt::format(
        "replicas.topk = {:g} sends each value {:.2g} times on average in the {} sums of "
        "the run: much of what replicas learn is lost; set a larger topk, or codec = \"quantized\"",
        replicas.topk, times, sums));
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
        warnings.insert(
            fmt::format("{} is a link to {}, which is missing: the file is passed over",
                        printable(entry->path().string(), 200),
                        printable(fs::read_symlink(entry->path(), ignored).string(), 200)));
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

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings)
    std::fprintf(stderr, "deltapipe: warning: %s\n", warning.c_str());
}

void print_warning_lines(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) std::printf("# warning: %s\n", warning.c_str());
}

}  // namespace deltapipe
