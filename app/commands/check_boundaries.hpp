// SPDX-License-Identifier: BSD-3-Clause
// Messages and memories of boundaries in the report of `check`.
#pragma once

#include "app/deck/settings.hpp"
#include "app/session/session.hpp"
#include "comm/pipeline/stage_plan.hpp"

namespace deltapipe {

/// Prints payloads, targets and caches of all boundaries; for several stages.
void print_boundaries(const Settings& settings, const ModelLayout& model,
                      const PipelineShape& shape);

}  // namespace deltapipe
