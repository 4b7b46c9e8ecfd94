// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/idle_settings.hpp"

#include "comm/pipeline/pipeline.hpp"
#include "core/codec/algorithms/recommended.hpp"

namespace deltapipe {

namespace {

/// A setting of a boundary: whether it has another value than where nothing was said of it, and
/// what it takes to have an effect.
struct Idle {
  const char* key;
  bool is_idle;
  std::string wants;
};

/// True if the deck gives the links between stages a bandwidth or a latency.
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

/// Adds warnings about settings of replicas, and about links that join nothing.
void add_warnings_of_ranks(const Settings& settings, std::vector<std::string>& warnings) {
  const ReplicaSettings& replicas = settings.replicas;
  const PipelineSettings& pipeline = settings.pipeline;
  const ReplicaCodec codec = replicas.codec;
  if (replicas.topk != ReplicaSettings().topk && codec != ReplicaCodec::topk)
    warnings.emplace_back("replicas.topk has no effect: it requires replicas.codec = \"topk\"");
  if (replicas.bits != ReplicaSettings().bits && !has_errors(codec))
    warnings.emplace_back(
        "replicas.bits has no effect: it requires replicas.codec = \"quantized\", \"topk\" or "
        "\"adam_moment\"");
  // Second moments freeze with one replica as well.
  if (pipeline.replicas == 1 && codec != ReplicaCodec::none && codec != ReplicaCodec::adam_moment)
    warnings.emplace_back(
        "replicas.codec has no effect: it requires pipeline.replicas = 2 or more");
  const NetworkSettings& network = settings.network;
  const bool joins_replicas = pipeline.replicas > 1 && network.wire == WireSharing::rank;
  if (pipeline.stages == 1 && !joins_replicas && has_links(network))
    warnings.push_back(std::string("[network] has no effect: its links join stages; ") +
                       (pipeline.replicas > 1 ? "those of replicas are [network.replicas]"
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
  add_warnings_of_ranks(settings, warnings);
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

}  // namespace deltapipe
