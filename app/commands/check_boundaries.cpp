// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/check_boundaries.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "app/output/progress_display.hpp"
#include "app/preflight/memory_prediction.hpp"
#include "app/preflight/message_sizes.hpp"
#include "comm/pipeline/bit_budget.hpp"
#include "comm/transport/message.hpp"
#include "core/codec/codec.hpp"

namespace deltapipe {

namespace {

/// Positions take the fewer bytes the closer together they are; coded values take what they carry.
const char* note_on_bytes(const CodecSettings& codec) {
  return has_fixed_length(codec) ? "" : ", at most";
}

/// Boundaries [first, last] with one shape.
struct Boundaries {
  int first, last;
  BoundaryShape shape;
  bool are_all = false;  ///< all boundaries of the run
};

/// Returns the boundaries of a run in groups of one shape.
std::vector<Boundaries> boundaries_of(const ModelLayout& model) {
  std::vector<Boundaries> groups;
  int i = 0;
  for (const BoundaryShape& shape : boundary_shapes(*model.model, model.partition, model.tokens)) {
    if (!groups.empty() && groups.back().shape == shape)
      groups.back().last = i;
    else
      groups.push_back({i, i, shape});
    ++i;
  }
  if (groups.size() == 1) groups.front().are_all = true;
  return groups;
}

std::string text_of(const Boundaries& group) {
  return group.first == group.last ? fmt::format("boundary {}", group.first)
                                   : fmt::format("boundaries {} ... {}", group.first, group.last);
}

/// ", none at boundaries 0 ... 2", which precede the first stage that is trained.
std::string note_on_boundaries(int first, int without_gradients) {
  if (without_gradients == 0) return "";
  return ", none at " + text_of({first, first + without_gradients - 1, {}});
}

void print_wire(const Settings& settings, const ModelLayout& model, const Boundaries& group,
                bool backward) {
  const TrainingSettings& t = settings.training;
  const int count = group.last + 1 - group.first;
  const int without = backward ? std::clamp(model.first_trained_stage - group.first, 0, count) : 0;
  const std::string where = group.are_all ? "" : ", " + text_of(group);
  if (without == count) {
    std::printf("# backward   %36s  %8s  %21s%s\n", "none", "none", "none", where.c_str());
    return;
  }
  const CodecShape shape{t.micro_batch_size, group.shape.tokens, group.shape.channels};
  const CodecSettings& codec_settings = backward ? settings.backward : settings.forward;
  const std::unique_ptr<Codec> codec = make_codec(codec_settings, shape, settings.cache.storage);
  codec->share(make_forward_masks(settings.forward, settings.backward, shape, 1));
  Crossing crossing;
  crossing.kind = backward ? CrossingKind::gradient : CrossingKind::activation;
  crossing.epoch = codec_settings.warmup_epochs;
  for (int b = 0; b < t.micro_batch_size; ++b) {
    crossing.sample_ids.push_back(b);
    crossing.tokens.push_back(shape.tokens);
    crossing.visits.push_back(0);
  }
  const double first = static_cast<double>(codec->payload_bytes(crossing));
  std::fill(crossing.visits.begin(), crossing.visits.end(), 1u);
  const double later = static_cast<double>(codec->payload_bytes(crossing));
  const double step = static_cast<double>(settings.pipeline.replicas) * t.micro_batches *
                      (later + static_cast<double>(sizeof(MessageHeader)));
  std::printf("# %-9s  %36sB  %7sB  %20sB%s%s%s\n", backward ? "backward" : "forward",
              with_prefix(first).c_str(), with_prefix(later).c_str(), with_prefix(step).c_str(),
              note_on_bytes(codec_settings), where.c_str(),
              note_on_boundaries(group.first, without).c_str());
}

void print_wire(const Settings& settings, const ModelLayout& model,
                const std::vector<Boundaries>& groups) {
  std::printf(
      "#\n# direction  payload of a micro-batch: first visit  later    wire per step and "
      "boundary\n");
  for (const bool backward : {false, true})
    for (const Boundaries& group : groups) print_wire(settings, model, group, backward);
}

/// Prints a step's bytes and seconds at each boundary when a run holds its target of bits.
void print_targets(const Settings& settings, const ModelLayout& model,
                   const std::vector<Boundaries>& groups) {
  const TrainingSettings& t = settings.training;
  const double samples =
      static_cast<double>(settings.pipeline.replicas) * t.micro_batches * t.micro_batch_size;
  std::vector<double> values;  // of a step, by boundary
  for (const Boundaries& group : groups)
    for (int i = group.first; i <= group.last; ++i)
      values.push_back(samples * group.shape.tokens * group.shape.channels);
  const PipelineOptions options = pipeline_options(settings);
  for (const bool backward : {false, true}) {
    const char* const direction = backward ? "backward" : "forward";
    std::vector<double> bits;
    for (int i = 0; i + 1 < settings.pipeline.stages; ++i)
      bits.push_back(step_target(options, 0, i, backward).bits);
    const std::vector<double> speeds = link_speeds(options, backward);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      if (bits[i] == 0 || (backward && static_cast<int>(i) < model.first_trained_stage)) continue;
      const double bytes = bits[i] * values[i] / 8;
      std::printf("# target %s, boundary %zu: %.3g bits per value, %sB per step", direction, i,
                  bits[i], with_prefix(bytes).c_str());
      if (speeds[i] > 0) std::printf(", %.3g s on its link", 8 * bytes / speeds[i]);
      std::printf("\n");
    }
    const double error = step_target(options, 0, 0, backward).error;
    if (error > 0 && !(backward && model.first_trained_stage + 1 >= settings.pipeline.stages))
      std::printf("# target %s: a relative RMS error of %g at each boundary\n", direction, error);
  }
}

/// Prints the bytes of a micro-batch of evaluations through the codec.
void print_evaluation_wire(const Settings& settings, const std::vector<Boundaries>& groups) {
  if (!settings.evaluation.has(EvaluationMode::codec)) return;
  const int samples = settings.training.micro_batch_size;
  const CodecSettings codec_settings =
      without_memory(settings.forward, settings.evaluation.changes);
  for (const Boundaries& group : groups) {
    const BoundaryShape& shape = group.shape;
    const std::unique_ptr<Codec> codec =
        make_codec(codec_settings, {samples, shape.tokens, shape.channels}, settings.cache.storage);
    Crossing crossing;
    crossing.training = false;
    crossing.evaluation = EvaluationMode::codec;
    crossing.sample_ids.resize(samples);
    crossing.tokens.assign(samples, shape.tokens);
    crossing.visits.assign(samples, 0);
    std::printf("# evaluations through the codec send %s a micro-batch and %s%s\n",
                bytes_text(codec->payload_bytes(crossing)).c_str(),
                group.are_all ? "boundary" : text_of(group).c_str(), note_on_bytes(codec_settings));
  }
}

void print_cache(const std::string& where, const BoundaryEndPlan& plan) {
  const CacheNeed need = cache_need(plan);
  if (need.record_bytes == 0) return;
  std::printf("# %s: %s per %s", where.c_str(), bytes_text(need.record_bytes).c_str(),
              plan.memory.of_positions ? "place of a step" : "sample");
  if (plan.memory.samples > 0)
    std::printf("; %s in memory (%s of it staging), %s on disk",
                bytes_text(need.memory_bytes).c_str(), bytes_text(need.staging_bytes).c_str(),
                bytes_text(need.disk_bytes).c_str());
  else
    std::printf(", the number of samples is not known yet");
  std::printf("\n");
}

/// Prints the records of both ends of boundaries of one shape, for one that gradients cross if
/// there is one.
void print_caches(const Settings& settings, const ModelLayout& model, const PipelineShape& shape,
                  const Boundaries& group) {
  const int before = std::clamp(model.first_trained_stage, group.first, group.last);
  const std::string where = group.are_all ? "" : " of " + text_of(group);
  const StagePlan first = stage_plan_of(settings, model, shape, before);
  const StagePlan second = stage_plan_of(settings, model, shape, before + 1);
  if (cache_need(*second.receive_forward).record_bytes > 0)
    print_cache("activation cache at each boundary end" + where, *first.send_forward);
  else
    print_cache("errors of activations at each sender" + where, *first.send_forward);
  if (!second.send_backward) return;
  if (cache_need(*first.receive_backward).record_bytes > 0)
    print_cache("memories of gradients at each boundary end" + where, *second.send_backward);
  else
    print_cache("errors of gradients at each sender" + where, *second.send_backward);
}

}  // namespace

void print_boundaries(const Settings& settings, const ModelLayout& model,
                      const PipelineShape& shape) {
  const std::vector<Boundaries> groups = boundaries_of(model);
  print_wire(settings, model, groups);
  print_targets(settings, model, groups);
  print_evaluation_wire(settings, groups);
  for (const Boundaries& group : groups) print_caches(settings, model, shape, group);
}

}  // namespace deltapipe
