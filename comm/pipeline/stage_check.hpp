// SPDX-License-Identifier: BSD-3-Clause
// Stages that were made apart must fit together.
#pragma once

#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/stage/stage.hpp"

namespace deltapipe {

/// Collective over all ranks. UserError on all of them that names the boundary and both shapes when
/// stages disagree on what crosses between them for samples of `tokens` tokens, or the first and
/// the last one on a shared token embedding.
void compare_stages(ProgressThread& progress, const ProcessGrid& grid, const Stage<float>& stage,
                    int tokens);

}  // namespace deltapipe
