// The commands that run a pipeline.
#pragma once

#include "comm/process_grid.hpp"
#include "comm/progress_thread.hpp"
#include "core/deck/settings.hpp"

namespace deltapipe {

/// Every rank calls these together; any may throw, inside agree().
void run_train(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress);
void run_evaluate(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress);
void run_generate(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress);
/// One process: prints what the deck amounts to and runs nothing.
void run_check(const Settings& settings);

}  // namespace deltapipe
