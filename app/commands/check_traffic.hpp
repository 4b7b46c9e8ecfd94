// SPDX-License-Identifier: BSD-3-Clause
// The run's figures and its bytes in the report of `check`.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "app/deck/settings.hpp"
#include "app/preflight/available_inputs.hpp"
#include "app/preflight/memory_prediction.hpp"
#include "app/preflight/traffic_prediction.hpp"
#include "app/session/session.hpp"

namespace deltapipe {

/// Prints the figures that a user decides by.
void print_summary(const Settings& settings, const ModelLayout& model,
                   const AvailableInputs& inputs, std::uint64_t steps,
                   const std::vector<RankMemory>& ranks,
                   const std::optional<TrafficPrediction>& traffic,
                   const std::vector<DiskNeed>& disks);

/// Prints what the run sends, boundary by boundary and rank by rank.
void print_traffic(const Settings& settings, const TrafficPrediction& traffic);

}  // namespace deltapipe
