// SPDX-License-Identifier: BSD-3-Clause
// Stages that were made apart must fit together.
#pragma once

#include <span>

#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/stage/stage.hpp"

namespace deltapipe {

/// Collective over all ranks, each with its stages in their order. UserError on all of them that
/// names the boundary and both shapes when stages disagree on what crosses between them for samples
/// of `tokens` tokens, or the first and the last one on a shared token embedding.
void compare_stages(ProgressThread& progress, const ProcessGrid& grid,
                    std::span<Stage<float>* const> stages, int tokens);

}  // namespace deltapipe
