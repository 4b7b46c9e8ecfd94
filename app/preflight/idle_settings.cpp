// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/idle_settings.hpp"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "comm/pipeline/pipeline.hpp"
#include "core/codec/algorithms/recommended.hpp"
#include "models/model.hpp"

namespace deltapipe {

namespace {

/// A key of a section: whether the deck sets it without effect, and the settings that it requires.
struct Idle {
  const char* key;
  bool is_idle;
  std::string required;
};

void add_warnings(const std::string& section, std::span<const Idle> settings,
                  std::vector<std::string>& warnings) {
  for (const Idle& setting : settings)
    if (setting.is_idle)
      warnings.push_back(fmt::format("{}{} has no effect: it requires {}", section, setting.key,
                                     setting.required));
}

/// Returns true if the deck gives the links between stages a bandwidth or a latency.
bool has_links(const NetworkSettings& network) {
  return !network.forward.empty() || !network.backward.empty() || !network.ranks.empty();
}

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
      {"quantizer.budget",
       rate.budget == BudgetSharing::time && !(rate.has_bits() && has_links(network)),
       rate.has_bits() ? "a network.bandwidth" : "rate"},
  };
}

/// Returns true if no direction holds the error that codec = "auto" derives from boundary.error.
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
  if (settings.data.images.padding == 0) return "data.images.padding";
  if (!has_memory_of_samples(settings.forward) && !has_memory_of_samples(settings.backward))
    return "boundary.forward.codec = \"aqsgd\" or \"aqsgd_topk\", or feedback.kind with "
           "feedback.of = \"sample\"";
  return {};
}

/// Adds warnings about keys of [model.new] that another architecture has.
void add_warnings_of_new_model(const ModelSettings& model, std::vector<std::string>& warnings) {
  if (!model.path.empty()) return;
  const ModelType& type = model_type(model.type);
  const ModelSettings usual;
  const std::pair<const char*, bool> keys[] = {
      {"n_layer", model.n_layer != usual.n_layer},
      {"n_head", model.n_head != usual.n_head},
      {"n_inner", model.n_inner != usual.n_inner},
      {"n_positions", model.n_positions != usual.n_positions},
      {"patch_size", model.patch_size != usual.patch_size},
      {"depths", model.depths != usual.depths},
      {"stem", model.stem != usual.stem},
  };
  for (const auto& [key, is_set] : keys)
    if (is_set && !type.has_new_key(key))
      warnings.push_back(
          fmt::format("model.new.{} has no effect on a model of type \"{}\"", key, model.type));
}

/// Adds warnings about settings of replicas.
void add_warnings_of_replicas(const Settings& settings, std::vector<std::string>& warnings) {
  const ReplicaSettings& replicas = settings.replicas;
  const ReplicaSettings usual;
  const ReplicaCodec codec = replicas.codec;
  const bool is_alone = settings.pipeline.replicas == 1;
  const char* const any_errors = "replicas.codec = \"quantized\", \"topk\" or \"adam_moment\"";
  const char* const several = "pipeline.replicas = 2 or more";
  const Idle idle[] = {
      {"topk", replicas.topk != usual.topk && codec != ReplicaCodec::topk,
       "replicas.codec = \"topk\""},
      {"bits", replicas.bits != usual.bits && !has_errors(codec), any_errors},
      {"bits", replicas.bits != usual.bits && codec == ReplicaCodec::adam_moment && is_alone,
       several},
      {"warmup_epochs", replicas.warmup_epochs > 0 && !has_errors(codec), any_errors},
      {"outer_learning_rate",
       replicas.outer_learning_rate != usual.outer_learning_rate && replicas.local_steps == 0,
       "replicas.local_steps"},
      {"outer_momentum",
       replicas.outer_momentum != usual.outer_momentum && replicas.local_steps == 0,
       "replicas.local_steps"},
      {"codec",
       has_errors(codec) && settings.training.steps == 0 && replicas.warmup_epochs > 0 &&
           replicas.warmup_epochs >= settings.training.epochs,
       "replicas.warmup_epochs below training.epochs"},
      // Second moments freeze with one replica as well.
      {"codec", is_alone && codec != ReplicaCodec::none && codec != ReplicaCodec::adam_moment,
       several},
  };
  add_warnings("replicas.", idle, warnings);
  if (replicas.local_steps > 0 && is_alone)
    warnings.emplace_back(
        "replicas.local_steps is set and there is one replica: no sums are sent, and outer steps "
        "still change its parameters; set pipeline.replicas to 2 or more, or replicas.local_steps "
        "to 0");
}

/// Adds warnings about links that join nothing.
void add_warnings_of_links(const Settings& settings, std::vector<std::string>& warnings) {
  const NetworkSettings& network = settings.network;
  const PipelineSettings& pipeline = settings.pipeline;
  const bool joins_replicas = pipeline.replicas > 1 && network.wire == WireSharing::rank;
  if (pipeline.stages == 1 && !joins_replicas && has_links(network))
    warnings.push_back(fmt::format("[network] has no effect: its links join stages; {}",
                                   pipeline.replicas > 1
                                       ? "those of replicas are [network.replicas]"
                                       : "set pipeline.stages to 2 or more"));
  if (pipeline.replicas == 1 && network.replicas != LinkSettings())
    warnings.emplace_back(
        "[network.replicas] has no effect: it requires pipeline.replicas = 2 or more");
}

}  // namespace

std::vector<std::string> warnings_without_effect(const Settings& settings) {
  std::vector<std::string> warnings;
  if (settings.data.images.padding > 0 && settings.data.kind != DataKind::images)
    warnings.emplace_back("data.images.padding has no effect: it requires data.kind = \"images\"");
  add_warnings_of_new_model(settings.model, warnings);
  add_warnings_of_replicas(settings, warnings);
  add_warnings_of_links(settings, warnings);
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
    add_warnings(section,
                 idle_settings(codec, forward ? settings.forward_rate : settings.backward_rate,
                               settings.network, direction),
                 warnings);
  }
  if (settings.move_memories)
    if (const std::string missing = missing_for_moves(settings); !missing.empty())
      warnings.push_back("boundary.move_memories has no effect: it requires " + missing);
  if (settings.evaluation.changes != EvaluationSettings().changes) {
    std::string required;
    if (!settings.evaluation.has(EvaluationMode::codec))
      required = "evaluation.boundary = \"codec\" or \"both\"";
    else if (settings.forward.kind != CodecKind::none && !sends_changes(settings.forward))
      required = "boundary.forward.codec = \"aqsgd\" or \"aqsgd_topk\"";
    if (!required.empty())
      warnings.push_back("evaluation.changes has no effect: it requires " + required);
  }
  return warnings;
}

}  // namespace deltapipe
