// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/settings.hpp"

namespace deltapipe {

namespace {

/// The checkpoints that stay and the one that is being written.
CacheGenerations cache_generations(const Settings& settings) {
  const CheckpointSettings& c = settings.checkpoint;
  CacheGenerations generations;
  generations.keep_files = writes_checkpoints(settings);
  if (!generations.keep_files || c.mode == CheckpointMode::resync) return generations;
  generations.kept = c.keep + 1;
  if (c.every_seconds == 0 && c.every_steps > 0)
    generations.visits = c.every_steps * settings.training.micro_batch_size *
                         settings.training.micro_batches *
                         (c.milestone_every > 0 ? 2 : 1);  // milestones hold copies
  return generations;
}

}  // namespace

PipelineOptions pipeline_options(const Settings& settings) {
  PipelineOptions options;
  options.pipeline = settings.pipeline;
  options.forward = settings.forward;
  options.backward = settings.backward;
  options.forward_rate = settings.forward_rate;
  options.backward_rate = settings.backward_rate;
  options.evaluation = settings.evaluation;
  options.cache = settings.cache;
  if (settings.move_memories && settings.data.kind == DataKind::images)
    options.moves = {settings.data.images.padding, settings.data.images.flip};
  options.cache.directory = cache_directory(settings);
  options.generations = cache_generations(settings);
  options.network = settings.network;
  options.replicas = settings.replicas;
  options.seed = settings.training.seed;
  options.micro_batch_size = settings.training.micro_batch_size;
  options.micro_batches = settings.training.micro_batches;
  options.products = settings.training.precision;
  options.recompute = settings.training.recompute;
  options.recompute_stages = settings.training.recompute_stages;
  return options;
}

}  // namespace deltapipe
