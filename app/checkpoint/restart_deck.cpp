// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/restart_deck.hpp"

#include <fmt/format.h>

#include <string_view>
#include <tuple>

#include "app/deck/deck.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

namespace {

/// All that a restart may change: where and how results go, what only takes time, and the layout.
bool may_change(const std::string& key) {
  constexpr std::string_view kKeys[] = {"output.",
                                        "checkpoint.",
                                        "network.",
                                        "generate.",
                                        "plan.",
                                        "evaluation.prompts",
                                        "model.path",
                                        "tokenizer.path",
                                        "data.train",
                                        "data.validation",
                                        "data.predict",
                                        "training.evaluate_every",
                                        "training.patience",
                                        "training.recompute",
                                        "training.recompute_stages",
                                        "training.micro_batches",
                                        "pipeline.stages",
                                        "pipeline.stages_per_rank",
                                        "pipeline.replicas",
                                        "pipeline.partition",
                                        "pipeline.schedule",
                                        "pipeline.in_flight",
                                        "pipeline.timeout",
                                        "pipeline.step_timeout",
                                        "pipeline.verify_replicas",
                                        "pipeline.gpu_aware_mpi",
                                        "cache.budget",
                                        "cache.directory",
                                        "cache.keep",
                                        "cache.prefetch"};
  return is_listed(key, kKeys);
}

bool is_length(const std::string& key) {
  return key == "training.steps" || key == "training.epochs";
}

/// True for keys that checkpoint.change_optimizer may change. Tensors that are frozen have no
/// moments, and each optimizer has its own.
bool is_of_optimizer(const std::string& key) {
  return (key.starts_with("training.optimizer.") && key != "training.optimizer.frozen" &&
          key != "training.optimizer.relative_embeddings" && key != "training.optimizer.name") ||
         is_length(key);
}

std::string way_to_change(const std::string& key) {
  return is_of_optimizer(key)
             ? "let it change from here on with checkpoint.change_optimizer = true, "
             : "";
}

}  // namespace

void refuse_change(const CheckpointMarker& marker, const std::string& key,
                   const std::string& old_value, const std::string& new_value,
                   const std::string& why) {
  throw UserError(
      {.what = fmt::format("{0} must not change at a restart{1}: the checkpoint of step {2} "
                           "was written with {0} = {3}",
                           key, why, marker.step, old_value),
       .value = new_value,
       .remedy = "set it back, " + way_to_change(key) +
                 "or start from scratch with output.overwrite = true or another "
                 "output.directory",
       .keys = {key}});
}

namespace {

std::uint64_t batch(const Settings& settings) {
  return std::uint64_t{1} * settings.training.micro_batch_size * settings.training.micro_batches *
         settings.pipeline.replicas;
}

/// Steps may be added where that changes no learning rate of the past.
void check_length(const Settings& settings, const Settings& former,
                  const CheckpointMarker& marker) {
  if (settings.training.optimizer.schedule == LearningRateSchedule::constant ||
      settings.checkpoint.change_optimizer)
    return;
  const std::string why = " unless the learning rate is constant";
  if (settings.training.steps != former.training.steps)
    refuse_change(marker, "training.steps", std::to_string(former.training.steps),
                  std::to_string(settings.training.steps), why);
  if (settings.training.epochs != former.training.epochs)
    refuse_change(marker, "training.epochs", fmt::format("{}", former.training.epochs),
                  fmt::format("{}", settings.training.epochs), why);
}

/// Other sizes of micro-batches are refused as keys that must not change.
void check_batch(const Settings& settings, const Settings& former, const CheckpointMarker& marker) {
  if (batch(settings) == batch(former)) return;
  const auto refuse = [&](const std::string& key, int was, int is) {
    if (is != was)
      refuse_change(marker, key, std::to_string(was), std::to_string(is),
                    " unless micro_batch_size x micro_batches x replicas stays the same");
  };
  refuse("pipeline.replicas", former.pipeline.replicas, settings.pipeline.replicas);
  refuse("training.micro_batches", former.training.micro_batches, settings.training.micro_batches);
}

}  // namespace

void check_deck_of_restart(const Settings& settings, const CheckpointMarker& marker) {
  const Settings former = parse_stored_deck(marker.deck, "the checkpoint's deck");
  check_batch(settings, former, marker);
  check_length(settings, former, marker);
  const bool changes_optimizer = settings.checkpoint.change_optimizer;
  for (const auto& [key, left, right] : differences(former, settings))
    if (!may_change(key) && !is_length(key) && !(changes_optimizer && is_of_optimizer(key)))
      refuse_change(marker, key, left, right, "");
}

std::string changes_of_optimizer(const Settings& settings, const CheckpointMarker& marker) {
  std::string text;
  for (const auto& [key, left, right] :
       differences(parse_stored_deck(marker.deck, "the checkpoint's deck"), settings))
    if (is_of_optimizer(key))
      text += fmt::format("{}{} = {} -> {}", text.empty() ? "" : ", ", key, left, right);
  return text;
}

void check_data_of_restart(const CheckpointMarker& marker, std::uint64_t train_fingerprint,
                           std::uint64_t validation_fingerprint) {
  for (const auto& [what, key, former, now] :
       {std::tuple{"training", "data.train", marker.train_fingerprint, train_fingerprint},
        std::tuple{"validation", "data.validation", marker.validation_fingerprint,
                   validation_fingerprint}})
    if (former != now)
      throw UserError(
          {.what = fmt::format("the checkpoint of step {} was written with other {} samples",
                               marker.step, what),
           .remedy = "name that run's files in data.train and data.validation, which may hold out "
                     "training samples, or start from scratch with output.overwrite = true or "
                     "another output.directory",
           .keys = {key}});
}

}  // namespace deltapipe
