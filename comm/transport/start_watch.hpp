// SPDX-License-Identifier: BSD-3-Clause
// Watches the start and the end of MPI, when ranks cannot communicate.
#pragma once

namespace deltapipe {

/// Ends this process with one message unless stop() reports in time that all ranks have started.
/// MPI_Init waits forever for a process that was stopped or never came up. The launcher then ends
/// the other processes. The time in seconds is DELTAPIPE_START_TIMEOUT in the environment, else
/// 120; 0: unlimited. Only one may exist at a time: it uses the process's interval timer (SIGALRM),
/// which needs no thread and no memory.
class StartWatch {
 public:
  /// Throws UserError on the first rank when the variable is not a number of seconds.
  StartWatch();
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

  /// Reports that all ranks have started; may be called again.
  void stop() noexcept;
};

/// Ends the process with one message and a failure after `seconds`, unless it ends earlier.
/// MPI_Finalize waits forever for a process that was stopped. Later calls have no effect. 0:
/// unlimited. Uses the same timer.
void watch_end(int rank, double seconds) noexcept;

/// Default if a run does not set the time.
inline constexpr double kEndSeconds = 120;

}  // namespace deltapipe
