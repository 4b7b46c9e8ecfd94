// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "app/deck/data_checks.hpp"
#include "app/deck/keys/replica_keys.hpp"
#include "comm/schedule/schedule.hpp"
#include "core/base/error.hpp"
#include "core/codec/settings_check.hpp"
#include "models/model.hpp"

namespace deltapipe::deck {

namespace {

using std::to_string;

/// A model takes the place of its directory as a whole, with all that is in it.
void check_directories(const Settings& s) {
  const auto plain = [](const std::string& path) {
    std::error_code error;
    return (std::filesystem::absolute(path, error) / "").lexically_normal();
  };
  for (const auto& [key, path] : {std::pair{"checkpoint.directory", s.checkpoint.directory},
                                  std::pair{"cache.directory", s.cache.directory}})
    for (const std::string& model : saved_models(s)) {
      if (path.empty()) continue;
      const std::filesystem::path inner = plain(path), outer = plain(model).parent_path();
      if (std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first !=
          outer.end())
        continue;
      refuse_settings({key, "output.directory"},
                      fmt::format("{} is in {}, which the trained model replaces", key, model),
                      path, "choose another directory");
    }
}

void check_training(const Settings& s) {
  const TrainingSettings& t = s.training;
  if (t.steps == 0 && t.epochs <= 0) {
    refuse_settings({"training.epochs", "training.steps"},
                    "the training has no steps and no epochs", "",
                    "set training.steps or training.epochs above 0");
  }
  if (t.steps > 0 && t.optimizer.warmup_steps > t.steps) {
    refuse_settings({"training.optimizer.warmup_steps", "training.steps"},
                    "the learning rate warms up for longer than the training lasts",
                    fmt::format("{} of {} steps", t.optimizer.warmup_steps, t.steps),
                    "lower training.optimizer.warmup_steps");
  }
  if (t.optimizer.decay_steps > 0 && t.optimizer.decay_steps <= t.optimizer.warmup_steps)
    refuse_settings(
        {"training.optimizer.decay_steps", "training.optimizer.warmup_steps"},
        "the learning rate's decay ends before its warm-up",
        fmt::format("{} and {} steps", t.optimizer.decay_steps, t.optimizer.warmup_steps),
        "raise training.optimizer.decay_steps, or set it to 0");
  if (t.optimizer.name != OptimizerName::adamw && s.replicas.codec == ReplicaCodec::adam_moment)
    refuse_settings({"replicas.codec", "training.optimizer.name"},
                    "replicas.codec = \"adam_moment\" sums the moments of AdamW",
                    "training.optimizer.name = \"sgd\"",
                    "set another replicas.codec, such as quantized");
  if (t.needs_validation() && s.data.validation.empty() && s.data.validation_fraction == 0) {
    const std::string key = t.keep_best ? "training.keep_best" : "training.patience";
    refuse_settings({key, "data.validation_fraction", "data.validation"},
                    key + " needs validation samples, and the deck leaves none",
                    "data.validation_fraction = 0, no files in data.validation",
                    "set data.validation_fraction above 0 or name files in data.validation");
  }
  // Rows of a step are counted in 32 bits. A model from files has its own longest sequence.
  const int tokens = s.data.sequence_length > 0                     ? s.data.sequence_length
                     : s.model.path.empty() && is_text(s.data.kind) ? s.model.n_positions
                                                                    : 1;
  const double rows = static_cast<double>(t.micro_batch_size) * t.micro_batches * tokens;
  if (rows > std::numeric_limits<int>::max()) {
    refuse_settings(
        {"training.micro_batches", "training.micro_batch_size", "data.sequence_length"},
        "training.micro_batch_size x training.micro_batches x data.sequence_length is too large",
        fmt::format("{} x {} x {}", t.micro_batch_size, t.micro_batches, tokens),
        "let a step of a replica have fewer than 2^31 tokens");
  }
  for (const int stage : t.recompute_stages) {
    if (stage < s.pipeline.stages) continue;
    refuse_settings({"training.recompute_stages", "pipeline.stages"},
                    "training.recompute_stages names a stage that does not exist", to_string(stage),
                    fmt::format("stages are 0 to {}", s.pipeline.stages - 1));
  }
}

void check_interleaving(const PipelineSettings& p) {
  if (p.stages == 1) return;
  const bool interleaves = find_schedule(p.schedule).interleaves;
  if (p.stages_per_rank > 1 && !interleaves) {
    refuse_settings(
        {"pipeline.stages_per_rank", "pipeline.schedule"},
        fmt::format("pipeline.schedule = \"{}\" has one stage on each rank", p.schedule),
        fmt::format("stages_per_rank = {}", p.stages_per_rank),
        "use schedule = \"interleaved\", or stages_per_rank = 1");
  }
  if (p.stages_per_rank == 1 && interleaves) {
    refuse_settings(
        {"pipeline.schedule", "pipeline.stages_per_rank"},
        fmt::format("pipeline.schedule = \"{}\" requires several stages on each rank", p.schedule),
        "stages_per_rank = 1",
        "set pipeline.stages_per_rank to 2 or more, or use schedule = \"1f1b\"");
  }
  if (p.stages % p.stages_per_rank != 0 || (interleaves && p.pipeline_ranks() < 2)) {
    refuse_settings(
        {"pipeline.stages", "pipeline.stages_per_rank"},
        "pipeline.stages must be a multiple of pipeline.stages_per_rank for at least two ranks",
        fmt::format("{} stages, {} on each rank", p.stages, p.stages_per_rank),
        fmt::format("set pipeline.stages to {}, {} ...", 2 * p.stages_per_rank,
                    3 * p.stages_per_rank));
  }
  // Less than two such groups of micro-batches may wait at a boundary.
  if (interleaves && 2 * std::int64_t{p.in_flight} * p.pipeline_ranks() > kMostMessageBuffers) {
    refuse_settings(
        {"pipeline.in_flight", "pipeline.stages"},
        "pipeline.in_flight x ranks of a pipeline is too large for an interleaved schedule",
        fmt::format("{} x {}", p.in_flight, p.pipeline_ranks()),
        fmt::format("use at most {} in all", kMostMessageBuffers / 2));
  }
}

/// Replicas differ between outer steps: nothing else may be due there.
void check_local_steps(const Settings& s) {
  const int local_steps = s.replicas.local_steps;
  if (local_steps == 0) return;
  const auto every = static_cast<std::uint64_t>(local_steps);
  const auto check = [&](const char* key, std::uint64_t interval) {
    if (interval % every == 0) return;
    refuse_settings({key, "replicas.local_steps"},
                    fmt::format("{} is not a multiple of replicas.local_steps", key),
                    fmt::format("{} and {}", interval, local_steps),
                    fmt::format("replicas agree after each outer step only: set {} to {}", key,
                                (interval / every + 1) * every));
  };
  check("training.evaluate_every", s.training.evaluate_every);
  check("checkpoint.every_steps", s.checkpoint.every_steps);
  check("checkpoint.milestone_every", s.checkpoint.milestone_every);
}

void check_pipeline(const Settings& s) {
  const PipelineSettings& p = s.pipeline;
  check_interleaving(p);
  if (!p.partition.empty() && p.partition.size() != static_cast<std::size_t>(p.stages)) {
    refuse_settings({"pipeline.partition", "pipeline.stages"},
                    "pipeline.partition needs one number per stage",
                    fmt::format("{} for {} stages", p.partition.size(), p.stages),
                    "give as many numbers as pipeline.stages, or none");
  }
  std::int64_t blocks = 0;
  for (const int stage_blocks : p.partition) blocks += stage_blocks;
  const bool has_depths = model_type(s.model.type).has_new_key("depths");
  const std::string key = has_depths ? "depths" : "n_layer";
  const std::int64_t model_blocks =
      has_depths ? std::accumulate(s.model.depths.begin(), s.model.depths.end(), std::int64_t{0})
                 : s.model.n_layer;
  if (s.model.path.empty() && !p.partition.empty() && blocks != model_blocks) {
    refuse_settings({"pipeline.partition", "model.new." + key},
                    "pipeline.partition does not add up to the new model's " + key,
                    fmt::format("{} of {} blocks", blocks, model_blocks),
                    "every block belongs to one stage");
  }
  if (s.model.path.empty() && p.stages > model_blocks) {
    refuse_settings({"pipeline.stages", "model.new." + key},
                    "pipeline.stages is larger than the new model's " + key,
                    fmt::format("{} stages, {} blocks", p.stages, model_blocks),
                    "every stage needs a block");
  }
  if (p.timeout_seconds > 0 && p.timeout_seconds < 1) {
    refuse_settings({"pipeline.timeout"},
                    "pipeline.timeout is shorter than what a living rank may be silent",
                    to_string(p.timeout_seconds), "use at least 1 s, or 0 for no limit");
  }
}

void check_boundary(const CodecSettings& c, const std::string& section) {
  const auto mistake = contradiction_in(c);
  if (!mistake) return;
  std::vector<std::string> keys;
  for (const std::string& key : mistake->keys) keys.push_back(section + "." + key);
  refuse_settings(std::move(keys), section + ": " + mistake->what, mistake->value, mistake->remedy);
}

/// Codecs that are turned off leave their targets alone.
void check_rate(const RateSettings& rate, const CodecSettings& codec, int stages,
                const std::string& section) {
  if (codec.kind == CodecKind::none) return;
  const std::string bits = section + ".rate", error = section + ".quantizer.error";
  if (rate.has_bits() && rate.target_error > 0)
    refuse_settings({error, bits}, section + ": rate and quantizer.error exclude each other", "",
                    "set one of them to 0");
  const bool has_target = rate.has_bits() || rate.target_error > 0;
  if (has_target && !quantizes_all(codec))
    refuse_settings(
        {rate.has_bits() ? bits : error},
        section + ": a rate or an error is held by the steps of codes",
        fmt::format("codec = \"{}\"", kCodecKindNames[static_cast<std::size_t>(codec.kind)]),
        "use codec = \"auto\", \"directq\" or \"aqsgd\", or set it to 0");
  if (has_target && codec.rms_step == 0)
    refuse_settings(
        {section + ".quantizer.step"},
        section +
            ": a rate or an error, also that of codec = \"auto\", is held by steps of a "
            "fraction of the RMS",
        "quantizer.step = 0", "remove quantizer.step");
  const auto boundaries = static_cast<std::size_t>(stages - 1);
  const std::size_t count = rate.target_bits.size();
  if (count > 1 && rate.budget == BudgetSharing::time)
    refuse_settings({bits, section + ".quantizer.budget"},
                    section + ": budget = \"time\" shares one mean, and rate has one per boundary",
                    fmt::format("{} values", count), "give one value, or use budget = \"equal\"");
  if (count > 1 && count != boundaries)
    refuse_settings({bits, "pipeline.stages"},
                    section + ": rate needs one value or one per boundary",
                    fmt::format("{} values, {} boundaries", count, boundaries),
                    "the boundaries are one fewer than pipeline.stages");
}

void check_gradients(const Settings& s) {
  if (follows_forward(s.backward) && !sends_positions(s.forward))
    refuse_settings(
        {"boundary.backward.sparse.positions", "boundary.forward.codec"},
        "boundary.backward.sparse.positions = \"forward\" needs positions of activations",
        fmt::format("boundary.forward.codec = \"{}\"",
                    kCodecKindNames[static_cast<std::size_t>(s.forward.kind)]),
        "use boundary.forward.codec = \"topk\" or \"aqsgd_topk\", or positions = \"largest\"");
  if (!sends_changes(s.backward)) return;
  const std::string kind = kCodecKindNames[static_cast<std::size_t>(s.backward.kind)];
  refuse_settings(
      {"boundary.backward.codec"},
      "boundary.backward.codec cannot be " + kind + ": AQ-SGD keeps no memory of gradients",
      "\"" + kind + "\"",
      "use \"none\", \"fp16\", \"bf16\", \"directq\" or \"topk\"; the last "
      "with feedback.kind = \"ef21\" keeps a memory from zeros on");
}

/// One direction's links from its own lists or else those of both directions; `count` of what
/// they join.
std::vector<LinkSettings> links_of(const Draft& draft, const Draft::Links& own,
                                   const std::string& section, std::size_t count) {
  const bool of_ranks = draft.settings.network.wire == WireSharing::rank;
  const auto& rates =
      own.bits_per_second.empty() ? draft.both.bits_per_second : own.bits_per_second;
  const auto& latencies =
      own.latency_seconds.empty() ? draft.both.latency_seconds : own.latency_seconds;
  for (const auto& [name, size] :
       {std::pair{"bandwidth", rates.size()}, std::pair{"latency", latencies.size()}}) {
    if (size <= 1 || size == count) continue;
    const std::string key = section + "." + name, common = std::string("network.") + name;
    const bool interleaves = draft.settings.pipeline.stages_per_rank > 1;
    const std::string of = interleaves ? (of_ranks ? "rank of a pipeline" : "link")
                                       : (of_ranks ? "stage" : "boundary");
    const std::string all = interleaves ? (of_ranks     ? "ranks"
                                           : count == 1 ? "link"
                                                        : "links")
                                        : (of_ranks ? "stages" : "boundaries");
    refuse_settings({key, common, "pipeline.stages"},
                    fmt::format("network {} needs one value or one per {}", name, of),
                    fmt::format("{} values, {} {}", size, count, all),
                    of_ranks ? "with network.wire = \"rank\" each " + of + " has one wire"
                    : interleaves
                        ? "links join ranks to the next one, and the last one of more than two to "
                          "the first"
                        : "the boundaries are one fewer than pipeline.stages");
  }
  const auto at = [](const std::vector<double>& list, std::size_t i) {
    return list.empty() ? 0.0 : list[std::min(i, list.size() - 1)];
  };
  std::vector<LinkSettings> links(std::max(rates.size(), latencies.size()));
  for (std::size_t i = 0; i < links.size(); ++i) links[i] = {at(rates, i), at(latencies, i)};
  return links;
}

}  // namespace

void join_links(Draft& draft) {
  NetworkSettings& network = draft.settings.network;
  PipelineSettings& pipeline = draft.settings.pipeline;
  if (pipeline.stages == 1) pipeline.stages_per_rank = 1;
  if (pipeline.stages % pipeline.stages_per_rank != 0) return;  // check_settings() says so
  join_replica_links(draft);
  const auto ranks = static_cast<std::size_t>(pipeline.pipeline_ranks());
  if (network.wire == WireSharing::boundary) {
    const bool is_ring = pipeline.stages_per_rank > 1 && ranks > 2;
    const std::size_t links = is_ring ? ranks : ranks - 1;
    network.forward = links_of(draft, draft.forward, "network.forward", links);
    network.backward = links_of(draft, draft.backward, "network.backward", links);
    return;
  }
  for (const auto& [links, section] : {std::pair{&draft.forward, "network.forward"},
                                       std::pair{&draft.backward, "network.backward"}}) {
    if (links->bits_per_second.empty() && links->latency_seconds.empty()) continue;
    const std::string name = section;
    refuse_settings({name + ".bandwidth", name + ".latency", "network.wire"},
                    fmt::format("[{}] means nothing with network.wire = \"rank\"", section), {},
                    "a rank's wire serves both directions: set [network] bandwidth and latency");
  }
  network.ranks = links_of(draft, draft.both, "network", ranks);
}

void check_local_epochs(const Settings& settings, std::uint64_t steps_per_epoch,
                        std::uint64_t steps) {
  const auto local_steps = static_cast<std::uint64_t>(settings.replicas.local_steps);
  if (local_steps == 0 || settings.training.evaluate_every > 0 || steps <= steps_per_epoch ||
      steps_per_epoch % local_steps == 0)
    return;
  throw UserError({.what = "the steps of an epoch, after which evaluations are due, are not a "
                           "multiple of replicas.local_steps",
                   .value = fmt::format("{} and {}", steps_per_epoch, local_steps),
                   .remedy = "set training.evaluate_every to a multiple of replicas.local_steps",
                   .keys = {"training.evaluate_every", "replicas.local_steps"}});
}

void check_settings(const Settings& settings) {
  check_replicas(settings.replicas);
  check_local_steps(settings);
  check_model(settings);
  check_tokenizer(settings);
  check_data(settings);
  check_training(settings);
  check_pipeline(settings);
  check_rate(settings.forward_rate, settings.forward, settings.pipeline.stages, "boundary.forward");
  check_rate(settings.backward_rate, settings.backward, settings.pipeline.stages,
             "boundary.backward");
  check_boundary(settings.forward, "boundary.forward");
  check_boundary(settings.backward, "boundary.backward");
  check_gradients(settings);
  check_directories(settings);
}

}  // namespace deltapipe::deck
