// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "app/deck/settings.hpp"
#include "app/preflight/traffic_prediction.hpp"
#include "app/session/session.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "core/data/dataset.hpp"

namespace deltapipe {

/// Counts the messages of boundaries, step by step, as training forms them. Leaves the fields of
/// sums over replicas empty.
TrafficPrediction count_messages(const Settings& settings, const ModelLayout& model,
                                 const PipelineShape& shape, const DataSplit& data,
                                 const StepPlanner& planner, std::uint64_t steps);

}  // namespace deltapipe
