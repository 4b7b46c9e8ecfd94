// SPDX-License-Identifier: BSD-3-Clause
#include "app/training/stages.hpp"

#include <algorithm>

#include "models/partition.hpp"

namespace deltapipe {

std::vector<Stage<float>*> pointers_to(const Stages& stages) {
  std::vector<Stage<float>*> pointers;
  for (const auto& stage : stages) pointers.push_back(stage.get());
  return pointers;
}

Stages make_stages(const Model& model, const std::vector<int>& partition, const ProcessGrid& grid,
                   bool training, ProductPrecision products, int moments) {
  Stages stages;
  for (int local = 0; local < grid.stages_per_rank(); ++local) {
    stages.push_back(model.make_stage(stage_part(partition, grid.stage(local))));
    stages.back()->parameters().set_moments(moments);
    stages.back()->parameters().allocate(training, products);
  }
  return stages;
}

StepPlanner::Layout step_layout(const PipelineOptions& options) {
  return {options.micro_batch_size, options.micro_batches, options.pipeline.replicas};
}

bool pads_to_longest(const Model& model, const std::vector<int>& partition, int tokens) {
  const std::vector<Field> fields = model.fields();
  const auto has = [&](Field field) { return std::ranges::count(fields, field) > 0; };
  if (!has(Field::tokens) || !has(Field::label)) return false;
  return std::ranges::all_of(
      boundary_shapes(model, partition, tokens),
      [tokens](const BoundaryShape& shape) { return shape.tokens == tokens; });
}

PipelineShape pipeline_shape(const PipelineOptions& options, const Model& model,
                             const std::vector<int>& partition, const Dataset& data,
                             bool training) {
  PipelineShape shape =
      pipeline_shape(options, model.shape().vocabulary, data.sequence_length(), training);
  shape.fields = data.fields();
  shape.pads_to_longest = pads_to_longest(model, partition, shape.tokens);
  shape.train_samples = data.size();
  shape.data_fingerprint = data.fingerprint();
  shape.first_trained_stage = first_trained_stage(model, partition);
  shape.partition = partition;
  return shape;
}

}  // namespace deltapipe
