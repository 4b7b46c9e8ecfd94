// SPDX-License-Identifier: BSD-3-Clause
// Results that an earlier start left in output.directory. Repeating or mistyping a command replaces
// nothing that is complete: a finished run is left unchanged, an unfinished one continues, and a
// run of another deck or a model is in the way unless output.overwrite says that it may go.
#pragma once

#include <cstdint>
#include <string>

#include "app/deck/settings.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// The run of this deck that output.directory has.
struct FormerRun {
  std::string run_id;  ///< empty: there is no such run
  bool is_finished = false;
  // Known to rank 0 only.
  bool has_checkpoints = false;  ///< some were complete, wherever they are now
  std::string deck;
  std::uint64_t steps = 0, evaluations = 0;  ///< rows of its run file
};

/// Collective. UserError when a start would have to replace a finished run of another deck, a file
/// that is not a run file, or a model, and output.overwrite does not allow it.
FormerRun find_former_run(const Settings& settings, const ProcessGrid& grid,
                          ProgressThread& progress);

/// On rank 0, for a start from scratch although there is an unfinished run, which has no
/// checkpoint. Says that the run is replaced. UserError as above.
void check_start_from_scratch(const Settings& settings, const FormerRun& former);

/// The SLURM job that this process belongs to; empty: none.
std::string slurm_job();

/// Says in a sentence what a start would do in output.directory, for `check`; empty for a run that
/// begins. UserError as above.
std::string describe_start(const Settings& settings);

/// On rank 0: says that there is nothing to do.
void report_finished(const Settings& settings, const FormerRun& former);

}  // namespace deltapipe
