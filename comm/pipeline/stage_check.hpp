// SPDX-License-Identifier: BSD-3-Clause
// Checks that stages that were built separately fit together.
#pragma once

#include <span>

#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/stage/stage.hpp"

namespace deltapipe {

/// Compares the stages of all ranks; collective, each rank passes its stages in their order. Throws
/// UserError on all ranks that names the boundary and both shapes if stages disagree on what
/// crosses between them for samples of `tokens` tokens. Throws also if the first and the last one
/// disagree on a shared token embedding.
void compare_stages(ProgressThread& progress, const ProcessGrid& grid,
                    std::span<Stage<float>* const> stages, int tokens);

}  // namespace deltapipe
