// SPDX-License-Identifier: BSD-3-Clause
#include "app/training/stages.hpp"

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

PipelineShape pipeline_shape(const PipelineOptions& options, const Model& model,
                             const std::vector<int>& partition, const Dataset& data,
                             bool training) {
  PipelineShape shape =
      pipeline_shape(options, model.shape().vocabulary, data.sequence_length(), training);
  shape.fields = data.fields();
  shape.train_samples = data.size();
  shape.data_fingerprint = data.fingerprint();
  shape.first_trained_stage = first_trained_stage(model, partition);
  shape.partition = partition;
  return shape;
}

}  // namespace deltapipe
