// SPDX-License-Identifier: BSD-3-Clause
// Signals that ask a run to end: noted when they come, acted on where a run can end in order.
#pragma once

#include <exception>
#include <string>

namespace deltapipe {

/// From now on SIGINT, SIGTERM and SIGUSR1 are noted, each once: the same signal again ends the
/// process at once. Writing beyond a file size limit becomes an ordinary error (SIGXFSZ is
/// ignored).
void note_interruptions();

/// From now on SIGINT, SIGTERM and SIGUSR1 do nothing, and noted_signal(), which is returned, stays
/// as it is.
int ignore_interruptions();

/// From now on a reader of standard output or error that goes away ends nothing: writing to it
/// fails.
void outlive_readers();

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
};

/// "SIGTERM", or "signal 42".
std::string name_of_signal(int signal);

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
