// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/step_programs.hpp"

#include "app/preflight/memory_prediction.hpp"
#include "app/training/stages.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "models/model.hpp"

namespace deltapipe {

ScheduleShape step_shape(const Settings& settings, int stage) {
  ScheduleShape shape{stage, settings.pipeline.stages, settings.training.micro_batches,
                      settings.pipeline.in_flight};
  shape.stages_per_rank = settings.pipeline.stages_per_rank;
  return shape;
}

StepTraits step_traits(const ModelLayout& model) {
  StepTraits traits;
  traits.first_trained_stage = model.first_trained_stage;
  const auto first = model.model->make_stage(stage_part(model.partition, 0));
  const TokenEmbedding<float>* const embedding = first->token_embedding();
  traits.trains_common = first->common_parameters() != nullptr;
  if (embedding == nullptr) return traits;
  traits.embedding = embedding->shared() ? EmbeddingPlace::shared : EmbeddingPlace::first_stage;
  traits.embedding_frozen = embedding->wte_frozen();
  return traits;
}

std::vector<Program> step_programs(const Settings& settings, const StepTraits& traits) {
  const PipelineSettings& pipeline = settings.pipeline;
  const PipelineOptions options = pipeline_options(settings);
  std::vector<Program> programs;
  for (int rank = 0; rank < pipeline.pipeline_ranks(); ++rank) {
    std::vector<ScheduleShape> stages;
    for (const StagePlace& place : places_of_rank(pipeline, rank)) {
      ScheduleShape shape = step_shape(settings, place.stage);
      shape.first_trained_stage = traits.first_trained_stage;
      shape.trains_common = traits.trains_common;
      shape.recomputes = stage_recomputes(options, place.stage);
      shape.embedding = traits.embedding;
      shape.embedding_frozen = traits.embedding_frozen;
      stages.push_back(shape);
    }
    programs.push_back(training_program(find_schedule(pipeline.schedule), stages));
  }
  return programs;
}

}  // namespace deltapipe
