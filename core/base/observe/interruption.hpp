// SPDX-License-Identifier: BSD-3-Clause
// Signals that ask a run to end: noted when they come, acted on where a run can end in order.
#pragma once

#include <array>
#include <csignal>
#include <exception>
#include <string>

namespace deltapipe {

/// Signals by which users, terminals and batch systems end a run. If several come, the earlier one
/// in this list names the reason.
inline constexpr std::array kStopSignals = {SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGUSR2, SIGXCPU};

/// From now on the signals of kStopSignals are noted, each once: the same signal again ends the
/// process at once. A SIGHUP that was ignored stays so (nohup). Writing beyond a file size limit
/// becomes an ordinary error (SIGXFSZ is ignored).
void note_interruptions();

/// From now on the signals of kStopSignals do nothing. Returns noted_signal(), which does not
/// change any more.
int ignore_interruptions();

/// From now on a reader of standard output or error that goes away ends nothing: writing to it
/// fails.
void outlive_readers();

/// Exit status of a process that a signal ended, plus the signal's number, as shells have it.
inline constexpr int kSignalStatus = 128;

/// The signal that a run is to end at: the one noted last; 0: none. While an OrderlyStop lives, the
/// first one does not count.
int noted_signal() noexcept;

/// While it lives, the first signal asks for an end in order, at a moment that who looks chooses.
/// One at a time.
class OrderlyStop {
 public:
  OrderlyStop();
  ~OrderlyStop();
  OrderlyStop(const OrderlyStop&) = delete;
  OrderlyStop& operator=(const OrderlyStop&) = delete;
  /// The signal that asked; 0: none did.
  int signal() const noexcept;
  /// Sets the text that the handler of that signal writes to standard error at once, at most 512
  /// bytes. Not for two threads at once.
  static void set_notice(const std::string& text) noexcept;
};

/// "SIGTERM", or "signal 42".
std::string name_of_signal(int signal);

/// Throws Interrupted when noted_signal() has a signal: for long work that waits for nobody.
void throw_if_interrupted();

/// Thrown where a run ends because of a signal.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(int signal)
      : signal_(signal), text_("interrupted by " + name_of_signal(signal)) {}
  int signal() const { return signal_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  int signal_;
  std::string text_;
};

}  // namespace deltapipe
