// SPDX-License-Identifier: BSD-3-Clause
// The commands that run a pipeline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/deck/settings.hpp"
#include "app/preflight/start_check.hpp"
#include "comm/transport/machines.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

enum class TrainingEnd {
  finished,
  stopped,  ///< between two steps, as a signal or the time limit asked, with a checkpoint
  stopped_without_progress  ///< as stopped, but no checkpoint was written since this start
};

/// Every rank calls these together; any may throw, inside agree().
TrainingEnd run_train(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress);
void run_evaluate(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress);
void run_predict(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress);
void run_generate(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress);
/// One process: writes the model that a checkpoint of the deck's run has. `step`: which; 0: the
/// newest. `directory`: where to; empty: OUTPUT/model-step-<step>. Nothing is replaced.
void run_export(const Settings& settings, std::uint64_t step, const std::string& directory,
                const ProcessGrid& grid, ProgressThread& progress);
/// Parts that `check` shows beside the plan.
struct CheckOptions {
  bool schedule = false;  ///< the order of passes
  bool deck = false;      ///< the deck with all defaults, first
};

/// `check --plan`: prints the predicted time of a step for each codec and bandwidth, the bandwidth
/// that each codec needs, and what to set; with `as_json` as one JSON object. Throws UserError.
void run_plan(const Settings& settings, bool as_json);

/// On rank 0: prints what the deck amounts to and runs nothing. `machines` has an entry a rank
/// when as many were started as the run needs, else none. Throws UserError when the run could not
/// start: existing inputs do not fit, or something is missing. Returns what the ranks compare of
/// their inputs.
std::vector<Fact> run_check(const Settings& settings, const std::vector<RankMachine>& machines,
                            const CheckOptions& options);
/// On another rank of as many as the run needs: reads what the run would read there, and prints
/// nothing. Throws as run_check().
std::vector<Fact> run_check_elsewhere(const Settings& settings, int rank);
/// One process: writes the deck's texts as token files, and the tokenizer, to output.directory.
void run_tokenize(const Settings& settings);

}  // namespace deltapipe
