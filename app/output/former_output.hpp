// SPDX-License-Identifier: BSD-3-Clause
// Results that an earlier start left in output.directory. Repeating or mistyping a command replaces
// nothing that is complete: a finished run is left unchanged, an unfinished one continues, and a
// run of another deck or a model is in the way unless output.overwrite says that it may go.
#pragma once

#include <cstdint>
#include <string>

#include "app/deck/settings.hpp"
#include "app/output/former_run_file.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// Collective. The run of this deck that output.directory has; run_id is empty without one.
/// Ranks other than 0 know only run_id and is_finished. UserError when a start would have to
/// replace a finished run of another deck, a file that is not a run file, or a model, and
/// output.overwrite does not allow it.
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
