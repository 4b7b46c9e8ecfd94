// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/stage_plan.hpp"

#include <algorithm>
#include <numeric>

#include "comm/pipeline/bit_budget.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "comm/schedule/schedule.hpp"

namespace deltapipe {

bool stage_recomputes(const PipelineOptions& options, int stage) {
  return options.recompute ||
         std::find(options.recompute_stages.begin(), options.recompute_stages.end(), stage) !=
             options.recompute_stages.end();
}

namespace {

ScheduleShape schedule_shape(const PipelineOptions& options, const PipelineShape& shape,
                             const StagePlace& place) {
  ScheduleShape schedule;
  schedule.stage = place.stage;
  schedule.stages = place.stages;
  schedule.micro_batches = shape.micro_batches;
  schedule.in_flight = options.pipeline.in_flight;
  schedule.first_trained_stage = shape.first_trained_stage;
  schedule.recomputes = stage_recomputes(options, place.stage);
  schedule.stages_per_rank = place.stages_per_rank;
  return schedule;
}

bool keeps_text(const PipelineOptions& options, const PipelineShape& shape, int stages,
                const Stage<float>& stage) {
  const std::vector<EvaluationMode>& modes = options.evaluation.modes;
  return shape.keeps_text && std::any_of(modes.begin(), modes.end(), [&](EvaluationMode mode) {
           return continues_texts(options, mode, stages, stage);
         });
}

StageCapacity stage_capacity(const PipelineOptions& options, const PipelineShape& shape,
                             const StagePlace& place, const Stage<float>& stage) {
  StageCapacity capacity;
  capacity.samples = shape.samples;
  capacity.tokens = shape.tokens;
  capacity.micro_batches = shape.micro_batches;
  capacity.slots = shape.training ? slots_needed(find_schedule(options.pipeline.schedule),
                                                 schedule_shape(options, shape, place))
                                  : 1;
  capacity.embedding_rows = std::min(shape.vocabulary, step_rows(shape));
  capacity.training = shape.training && place.stage >= shape.first_trained_stage;
  capacity.input_gradient = place.stage > shape.first_trained_stage;
  capacity.recompute = stage_recomputes(options, place.stage);
  // Texts are continued with fp32 products of single rows; texts that cannot be continued use fp32
  // too.
  capacity.products = shape.keeps_text ? ProductPrecision::fp32 : options.products;
  capacity.splits_backward =
      capacity.training &&
      find_schedule(options.pipeline.schedule).splits(schedule_shape(options, shape, place));
  capacity.keeps_text = keeps_text(options, shape, place.stages, stage);
  return capacity;
}

BoundaryMemory boundary_memory(const PipelineOptions& options, const PipelineShape& shape,
                               const StagePlace& place) {
  BoundaryMemory memory;
  memory.samples = shape.train_samples;
  if (shape.train_samples > 0)
    memory.samples = std::max<std::uint64_t>(
        1, StepPlanner::samples_of_replica(shape.train_samples, place.replica, place.replicas));
  memory.first_sample = place.replica;
  memory.sample_stride = place.replicas;
  memory.data_fingerprint = shape.data_fingerprint;
  memory.budget_bytes = options.cache.budget_bytes;
  memory.prefetch_micro_batches = options.cache.prefetch;
  memory.directory = options.cache.directory;
  memory.keep_file = options.cache.keep;
  memory.generations = options.generations;
  memory.verify_every = options.cache.verify_every;
  memory.replica = place.replica;
  return memory;
}

/// Shares masks between directions, for gradients that travel at their activations' positions.
void share_masks(BoundaryEndPlan& forward, BoundaryEndPlan& backward, int slots) {
  forward.codec.masks = backward.codec.masks = make_forward_masks(
      forward.codec.settings, backward.codec.settings, forward.codec.shape, slots);
}

}  // namespace

PipelineShape pipeline_shape(const PipelineOptions& options, int vocabulary, int tokens,
                             bool training) {
  PipelineShape shape;
  shape.vocabulary = vocabulary;
  shape.tokens = tokens;
  shape.fields = fields_of_text(tokens);
  shape.samples = options.micro_batch_size;
  shape.micro_batches = options.micro_batches;
  shape.training = training;
  // train_samples stays 0: the caller sets the data's part.
  return shape;
}

int blocks_before_cut(const std::vector<int>& partition, int boundary) {
  const std::size_t stages = std::min(partition.size(), static_cast<std::size_t>(boundary) + 1);
  return std::accumulate(partition.begin(), partition.begin() + static_cast<std::ptrdiff_t>(stages),
                         0);
}

int padded_tokens(int longest, int most_tokens) {
  constexpr int kSizes = 16, kMultiple = 8;
  const int step =
      std::max(1, (most_tokens + kSizes * kMultiple - 1) / (kSizes * kMultiple)) * kMultiple;
  return std::min(most_tokens, (std::max(1, longest) + step - 1) / step * step);
}

bool crosses_token_by_token(const PipelineOptions& options, EvaluationMode mode, int stages) {
  if (stages == 1 || mode == EvaluationMode::plain) return true;
  return sends_tokens_alone(without_memory(options.forward, options.evaluation.changes));
}

bool continues_texts(const PipelineOptions& options, EvaluationMode mode, int stages,
                     const Stage<float>& stage) {
  return stage.text_continuation() != nullptr && crosses_token_by_token(options, mode, stages);
}

Matrix<float> make_padded_rows(const StagePlan& plan, const ViewAllocator& memory) {
  return memory.zeroed<Matrix<float>>(MemoryUse::messages, "deltapipe::PipelineStage::padded",
                                      plan.padded_rows, plan.padded_channels);
}

StagePlan plan_stage(const PipelineOptions& options, const PipelineShape& shape,
                     const Stage<float>& stage, const StagePlace& place) {
  StagePlan plan;
  plan.capacity = stage_capacity(options, shape, place, stage);

  const BoundaryMemory memory = boundary_memory(options, shape, place);
  const auto end = [&](int boundary, bool backward) {
    const BoundaryShape crosses = boundary == place.stage ? stage.output_shape(shape.tokens)
                                                          : stage.input_shape(shape.tokens);
    BoundaryEndPlan e;
    e.codec.settings = backward ? options.backward : options.forward;
    e.codec.shape = {shape.samples, crosses.tokens, crosses.channels};
    if (options.moves.has_any()) e.codec.shape.grid = crosses.grid;
    e.codec.storage = options.cache.storage;
    e.codec.training = shape.training;
    e.memory = memory;
    if (has_feedback_of_positions(e.codec.settings)) {
      e.memory.of_positions = true;
      e.memory.samples = static_cast<std::uint64_t>(shape.samples) * shape.micro_batches;
      e.memory.first_sample = 0;
      e.memory.sample_stride = 1;
    }
    e.boundary = static_cast<std::uint32_t>(boundary);
    e.blocks_before = static_cast<std::uint64_t>(blocks_before_cut(shape.partition, boundary));
    e.evaluation = options.evaluation;
    if (backward) e.evaluation.modes.clear();
    e.backward = backward;
    e.target = step_target(options, shape.steps, boundary, backward);
    e.side = backward != (boundary == place.stage) ? BoundarySide::sender : BoundarySide::receiver;
    e.buffers = message_buffers(find_schedule(options.pipeline.schedule),
                                schedule_shape(options, shape, place));
    e.payload_memory = options.pipeline.payload_memory();
    return e;
  };
  if (!place.last()) {
    plan.send_forward = end(place.stage, false);
    if (shape.training && place.stage >= shape.first_trained_stage) {
      plan.receive_backward = end(place.stage, true);
      share_masks(*plan.send_forward, *plan.receive_backward, plan.capacity.slots);
    }
  }
  if (!place.first()) {
    plan.receive_forward = end(place.stage - 1, false);
    if (shape.training && place.stage > shape.first_trained_stage) {
      plan.send_backward = end(place.stage - 1, true);
      share_masks(*plan.receive_forward, *plan.send_backward, plan.capacity.slots);
    }
  }

  if (shape.pads_to_longest && place.stages > 1) {
    plan.padded_rows = shape.samples * shape.tokens;
    for (const auto* forward : {&plan.send_forward, &plan.receive_forward})
      if (*forward)
        plan.padded_channels = std::max(plan.padded_channels, (*forward)->codec.shape.channels);
  }
  const CommonParameters<float>* const common = stage.common_parameters();
  if (common && shape.training && place.stages > 1)
    plan.common = plan_common_exchange(options, *common, shape.tokens, place.stage, place.stages);

  const TokenEmbedding<float>* const embedding = stage.token_embedding();
  const bool embedding_is_remote =
      embedding && embedding->lends_rows() && place.stages > 1 && (place.first() || place.last());
  plan.has_token_index =
      embedding && !embedding->wte_frozen() && (place.first() || embedding_is_remote);
  if (embedding_is_remote) {
    EmbeddingExchangeShape tokens;
    tokens.vocabulary = shape.vocabulary;
    tokens.rows_per_micro_batch = shape.samples * shape.tokens;
    tokens.micro_batches = shape.micro_batches;
    tokens.channels = embedding->embedding_channels();
    tokens.training = shape.training;
    plan.tokens = plan_embedding_exchange(options, tokens, place.stages, place.last());
  }
  return plan;
}

}  // namespace deltapipe
