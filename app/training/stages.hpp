// SPDX-License-Identifier: BSD-3-Clause
// A model's stages on a rank, and the shape of a pipeline that runs them.
#pragma once

#include <memory>
#include <vector>

#include "comm/pipeline/settings.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "comm/transport/process_grid.hpp"
#include "core/base/numeric/precision.hpp"
#include "core/data/dataset.hpp"
#include "core/stage/stage.hpp"
#include "models/model.hpp"
#include "models/optimizer_settings.hpp"

namespace deltapipe {

/// Stages of one rank, in their order.
using Stages = std::vector<std::unique_ptr<Stage<float>>>;
std::vector<Stage<float>*> pointers_to(const Stages& stages);

/// Makes this rank's stages. Their parameters have memory but no values; `training` adds gradients
/// and the moments that the optimizer keeps. `products`: as in the options of their pipeline.
/// `partition`: blocks per stage.
Stages make_stages(const Model& model, const std::vector<int>& partition, const ProcessGrid& grid,
                   bool training, ProductPrecision products = ProductPrecision::fp32,
                   int moments = OptimizerSettings().moments());

/// Returns how a step's samples are distributed.
StepPlanner::Layout step_layout(const PipelineOptions& options);

/// Returns true if micro-batches can be as long as their longest sample: texts with labels, whose
/// boundaries all have a row for each token.
bool pads_to_longest(const Model& model, const std::vector<int>& partition, int tokens);

/// Returns the shape of a pipeline that trains the model on `data` or, without `training`,
/// evaluates it. Leaves out the number of steps.
PipelineShape pipeline_shape(const PipelineOptions& options, const Model& model,
                             const std::vector<int>& partition, const Dataset& data,
                             bool training = true);

}  // namespace deltapipe
