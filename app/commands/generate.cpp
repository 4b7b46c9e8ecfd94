// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <span>

#include "app/commands/commands.hpp"
#include "app/output/progress_display.hpp"
#include "app/preflight/start_check.hpp"
#include "app/preflight/warnings.hpp"
#include "app/session/input_files.hpp"
#include "app/session/session.hpp"
#include "comm/pipeline/pipeline.hpp"
#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/base/numeric/random.hpp"
#include "core/base/utf8.hpp"

namespace deltapipe {

namespace {

/// Draws the next token: the most likely one at temperature 0, else from the softmax of
/// logits / temperature over the top_k largest (0: all).
std::int32_t sample_token(const std::vector<float>& logits, const GenerateSettings& settings,
                          std::uint64_t prompt, std::uint32_t position) {
  if (!std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }))
    throw UserError(
        {.what = fmt::format("the model's output for prompt {} is not finite", prompt + 1),
         .remedy = "use weights from before the training diverged"});
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (settings.temperature == 0) return *std::min_element(order.begin(), order.end(), likelier);
  std::size_t kept = order.size();
  if (settings.top_k > 0) kept = std::min<std::size_t>(kept, settings.top_k);
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), likelier);
  std::vector<double> cumulative(kept);
  double sum = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    sum += std::exp((logits[order[i]] - logits[order[0]]) / settings.temperature);
    cumulative[i] = sum;
  }
  std::uint32_t bits[4];
  RandomStream(settings.seed, 0, 0).draw(prompt, position, bits);
  const double point = sum * (bits[0] + 0.5) / 4294967296.0;
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), point);
  return order[std::min<std::size_t>(found - cumulative.begin(), kept - 1)];
}

/// Tokens may be single bytes of a letter: a byte that belongs to no UTF-8 sequence becomes U+FFFD.
std::string readable(const std::string& bytes) {
  std::string text;
  for (std::size_t begin = 0; begin < bytes.size();) {
    const std::size_t invalid = first_invalid_utf8(bytes, begin);
    text.append(bytes, begin, invalid - begin);
    if (invalid < bytes.size()) text += "\xef\xbf\xbd";
    begin = invalid + 1;
  }
  return text;
}

/// Name of the values that crossed boundaries for a text.
std::string name_of(const EvaluationSettings& evaluation, EvaluationMode mode) {
  if (mode == EvaluationMode::codec) return "through the codec";
  return kPlainPrecisionNames[static_cast<std::size_t>(evaluation.precision)] +
         std::string(" between stages");
}

void print_bytes(const ProcessGrid& grid, ProgressThread& progress, Pipeline& pipeline,
                 const std::string& name, std::uint64_t tokens) {
  if (grid.stages() == 1) return;
  const Pipeline::SentBytes sent = pipeline.take_sent_bytes();
  std::vector<double> bytes = {std::accumulate(sent.forward.begin(), sent.forward.end(), 0.0),
                               sent.tied_rows};
  all_reduce(progress, grid.world(), bytes, Reduction::sum);
  if (grid.rank() == 0)
    std::fprintf(stderr, "deltapipe: %s: %llu tokens, %sB of activations and %sB of token rows\n",
                 name.c_str(), static_cast<unsigned long long>(tokens),
                 with_prefix(bytes[0]).c_str(), with_prefix(bytes[1]).c_str());
}

/// Continues all prompts. With more than one stage stderr tells what that sent.
void generate(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress,
              const ModelPlan& plan, Pipeline& pipeline, EvaluationMode mode) {
  const std::vector<std::string> prompts =
      settings.generate.prompts.empty() ? std::vector<std::string>{""} : settings.generate.prompts;
  const TextEnds ends = plan.model->text_ends();
  const std::int32_t begin = ends.begin >= 0 ? ends.begin : plan.tokenizer->end_of_text();
  std::uint64_t calls = 0;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    std::vector<std::int32_t> tokens = plan.tokenizer->encode(prompts[p]);
    if (tokens.empty() && (begin < 0 || begin >= plan.model->shape().vocabulary))
      throw UserError(
          {.what = fmt::format("prompt {} is empty, and the model has no token that begins a text",
                               p + 1),
           .value = begin < 0 ? "" : fmt::format("bos_token_id {}", begin),
           .remedy = "give a prompt, or set bos_token_id in the model's config.json",
           .keys = {"generate.prompts"}});
    if (tokens.empty()) tokens.push_back(begin);
    if (static_cast<int>(tokens.size()) >= plan.tokens)
      throw UserError(
          {.what = fmt::format("prompt {} leaves no room for an answer", p + 1),
           .value = fmt::format("{} tokens", tokens.size()),
           .remedy = fmt::format("use fewer than {} tokens (data.sequence_length)", plan.tokens),
           .keys = {"generate.prompts"}});
    const std::size_t room = plan.tokens - tokens.size();
    const std::size_t limit = std::min<std::size_t>(room, settings.generate.max_new_tokens);
    std::size_t passed = 0;
    pipeline.begin_text(mode);
    for (std::size_t i = 0; i < limit; ++i) {
      const std::vector<float> logits =
          pipeline.continue_text(std::span<const std::int32_t>(tokens).subspan(passed), calls++);
      passed = tokens.size();
      std::vector<std::uint64_t> next(1);
      if (grid.last())
        next[0] = sample_token(logits, settings.generate, p, static_cast<std::uint32_t>(i));
      broadcast(progress, grid.pipeline_comm(), next, grid.owner_of(grid.stages() - 1));
      const auto token = static_cast<std::int32_t>(next[0]);
      if (std::ranges::find(ends.ends, token) != ends.ends.end()) break;
      tokens.push_back(token);
    }
    if (grid.rank() != 0) continue;
    const std::string text = (p > 0 ? "\n" : "") + readable(plan.tokenizer->decode(tokens)) + "\n";
    std::fwrite(text.data(), 1, text.size(), stdout);  // a token may be the zero byte
    std::fflush(stdout);
  }
  print_bytes(grid, progress, pipeline, name_of(settings.evaluation, mode), calls);
}

}  // namespace

void run_generate(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress) {
  require(find_input_files(settings, InputUse::generate));
  if (settings.data.kind != DataKind::text)
    throw UserError({.what = "generate requires a language model",
                     .value = fmt::format("data.kind = \"{}\"", name_of(settings.data.kind)),
                     .remedy = "use predict for a model that classifies",
                     .keys = {"data.kind"}});
  ModelPlan plan = plan_model(settings);
  if (grid.rank() == 0) {
    print_warnings(plan.warnings);
    print_warnings(warnings_of_untrained(settings));
    print_warnings(warnings_of_evaluation(settings));
  }
  compare_inputs(progress, plan, nullptr);
  const Stages stages = make_stages(settings, plan, grid, false, ProductPrecision::fp32);
  PipelineShape shape;
  shape.vocabulary = plan.model->shape().vocabulary;
  shape.tokens = plan.tokens;
  shape.fields = fields_of_text(shape.tokens);
  shape.training = false;
  shape.keeps_text = true;
  Pipeline pipeline(pipeline_options(settings), shape, grid, progress, pointers_to(stages));
  const std::vector<EvaluationMode>& modes = settings.evaluation.modes;
  for (const EvaluationMode mode : modes) {
    if (grid.rank() == 0 && modes.size() > 1)
      std::printf("%s# %s\n", mode == modes.front() ? "" : "\n",
                  name_of(settings.evaluation, mode).c_str());
    generate(settings, grid, progress, plan, pipeline, mode);
  }
}

}  // namespace deltapipe
