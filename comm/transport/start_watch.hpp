// SPDX-License-Identifier: BSD-3-Clause
// Watches while MPI starts or ends and no rank can talk to another.
#pragma once

namespace deltapipe {

/// Ends this process with one message when it is not told in time that the ranks are together:
/// MPI_Init waits for ever for a process that was stopped or never came up. The launcher then ends
/// the others. Seconds: DELTAPIPE_START_TIMEOUT in the environment, else 120; 0: for ever. One at a
/// time: it is the process's interval timer (SIGALRM), which takes no thread and no memory.
class StartWatch {
 public:
  /// UserError on the first rank when the variable is not a number of seconds.
  StartWatch();
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

  /// The ranks are together; may come again.
  void stop() noexcept;
};

/// From now on, until the process ends, ends it with one message and a failure after `seconds`:
/// MPI_Finalize waits for ever for a process that was stopped. Later calls change nothing. 0: for
/// ever. It is the same timer.
void watch_end(int rank, double seconds) noexcept;

/// Default of runs without a setting.
inline constexpr double kEndSeconds = 120;

}  // namespace deltapipe
