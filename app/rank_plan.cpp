// SPDX-License-Identifier: BSD-3-Clause
#include "app/rank_plan.hpp"

#include <algorithm>

#include "app/step_plan.hpp"
#include "comm/pipeline/schedule.hpp"

namespace deltapipe {

namespace {

bool stage_recomputes(const TrainingSettings& settings, int stage) {
  return settings.recompute ||
         std::find(settings.recompute_stages.begin(), settings.recompute_stages.end(), stage) !=
             settings.recompute_stages.end();
}

ScheduleShape schedule_shape(const Settings& settings, const PipelineShape& shape,
                             const RankPlace& place) {
  return {place.stage, place.stages, shape.micro_batches, settings.pipeline.in_flight};
}

StageCapacity stage_capacity(const Settings& settings, const PipelineShape& shape,
                             const RankPlace& place) {
  StageCapacity capacity;
  capacity.samples = shape.samples;
  capacity.tokens = shape.tokens;
  capacity.micro_batches = shape.micro_batches;
  capacity.slots = shape.training ? slots_needed(find_schedule(settings.pipeline.schedule),
                                                 schedule_shape(settings, shape, place))
                                  : 1;
  capacity.table_rows = std::min(shape.vocabulary, step_rows(shape));
  capacity.training = shape.training;
  capacity.recompute = stage_recomputes(settings.training, place.stage);
  return capacity;
}

BoundaryMemory boundary_memory(const Settings& settings, const PipelineShape& shape,
                               const RankPlace& place) {
  BoundaryMemory memory;
  memory.samples = shape.train_samples;
  if (shape.train_samples > 0)
    memory.samples = std::max<std::uint64_t>(
        1, StepPlanner::samples_of_replica(shape.train_samples, place.replica, place.replicas));
  memory.first_sample = place.replica;
  memory.sample_stride = place.replicas;
  memory.data_fingerprint = shape.data_fingerprint;
  memory.budget_bytes = settings.cache.budget_bytes;
  memory.prefetch_micro_batches = settings.cache.prefetch;
  memory.directory = cache_directory(settings);
  memory.keep_file = settings.cache.keep;
  memory.verify_every = settings.cache.verify_every;
  memory.replica = place.replica;
  return memory;
}

}  // namespace

PipelineShape pipeline_shape(const Settings& settings, int vocabulary, int tokens, bool training) {
  PipelineShape shape;
  shape.vocabulary = vocabulary;
  shape.tokens = tokens;
  shape.samples = settings.training.micro_batch_size;
  shape.micro_batches = settings.training.micro_batches;
  shape.training = training;
  // Memories stay where they are, so samples do, too.
  return shape;
}

RankPlan plan_rank(const Settings& settings, const PipelineShape& shape,
                   const BoundaryTraits& traits, const RankPlace& place) {
  RankPlan plan;
  plan.capacity = stage_capacity(settings, shape, place);

  const BoundaryMemory memory = boundary_memory(settings, shape, place);
  const auto end = [&](int boundary, bool backward) {
    BoundaryEndPlan e;
    e.codec.settings = backward ? settings.backward : settings.forward;
    e.codec.shape = {shape.samples, shape.tokens, traits.channels};
    e.codec.storage = settings.cache.storage;
    e.codec.training = shape.training;
    e.memory = memory;
    e.boundary = static_cast<std::uint32_t>(boundary);
    e.evaluates = !backward;
    e.backward = backward;
    e.side = backward != (boundary == place.stage) ? BoundarySide::sender : BoundarySide::receiver;
    e.slots = message_buffers(find_schedule(settings.pipeline.schedule),
                              schedule_shape(settings, shape, place));
    return e;
  };
  if (!place.last()) {
    plan.send_forward = end(place.stage, false);
    if (shape.training) plan.receive_backward = end(place.stage, true);
  }
  if (!place.first()) {
    plan.receive_forward = end(place.stage - 1, false);
    if (shape.training) plan.send_backward = end(place.stage - 1, true);
  }

  const bool table_is_remote = traits.tied && place.stages > 1;
  plan.has_token_index = place.first() || (place.last() && table_is_remote);
  if (table_is_remote && (place.first() || place.last())) {
    TokenExchangeShape tokens;
    tokens.vocabulary = shape.vocabulary;
    tokens.rows_per_micro_batch = shape.samples * shape.tokens;
    tokens.micro_batches = shape.micro_batches;
    tokens.channels = traits.channels;
    tokens.training = shape.training;
    plan.tokens = plan_token_exchange(settings, tokens, place.stages, place.last());
  }
  return plan;
}

}  // namespace deltapipe
