// SPDX-License-Identifier: BSD-3-Clause
// Signals that ask a run to end. They are noted when they arrive, and the run acts on them at a
// point where it can end in order.
#pragma once

#include <array>
#include <csignal>
#include <exception>
#include <string>

namespace deltapipe {

/// Signals by which users, terminals and batch systems end a run. If several arrive, the first of
/// them in this list names the reason.
inline constexpr std::array kStopSignals = {SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGUSR2, SIGXCPU};

/// Notes the signals of kStopSignals from now on, each once: the same signal again ends the process
/// at once. An ignored SIGHUP remains ignored (nohup). Writing beyond a file size limit becomes an
/// ordinary error (SIGXFSZ is ignored).
void note_interruptions();

/// Ignores the signals of kStopSignals from now on. Returns noted_signal(), which no longer
/// changes.
int ignore_interruptions();

/// From now on, a reader of standard output or error that goes away no longer ends the process:
/// writing fails instead.
void outlive_readers();

/// Exit status of a process that a signal ended, plus the signal's number, as in shells.
inline constexpr int kSignalStatus = 128;

/// Returns the signal that is to end the run, the one noted last; 0: none. While an OrderlyStop
/// exists, the first signal does not count.
int noted_signal() noexcept;

/// While it exists, the first signal asks for an end in order, and the caller of signal() chooses
/// the moment. Only one may exist at a time.
class OrderlyStop {
 public:
  OrderlyStop();
  ~OrderlyStop();
  OrderlyStop(const OrderlyStop&) = delete;
  OrderlyStop& operator=(const OrderlyStop&) = delete;
  /// Returns the signal that asked; 0: none.
  int signal() const noexcept;
  /// Sets the text, at most 512 bytes, that the handler of that signal writes to standard error at
  /// once. Only one thread may call it at a time.
  static void set_notice(const std::string& text) noexcept;
};

/// Returns "SIGTERM", or "signal 42".
std::string name_of_signal(int signal);

/// Throws Interrupted if noted_signal() returns a signal. For long work that waits for no other
/// rank.
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
