// SPDX-License-Identifier: BSD-3-Clause
// Agreement of all ranks to stop together, with one message.
#pragma once

#include <mpi.h>

#include <chrono>
#include <exception>
#include <functional>
#include <string>

#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// Thrown on every rank when any rank failed or was interrupted by a signal. The message is that of
/// the lowest rank that failed by itself; rank 0 of the communicator prints it.
class Stopped : public std::exception {
 public:
  struct Cause {
    std::string message;
    bool internal = false;  ///< a bug rather than a user's mistake (anything but UserError)
    int signal = 0;         ///< signal that interrupted a rank; 0: a failure
    bool in_deck = false;   ///< a UserError that names keys of the deck
  };
  Stopped(Cause cause, bool print_here, bool agreed)
      : cause_(std::move(cause)), print_here_(print_here), agreed_(agreed) {}
  const char* what() const noexcept override { return cause_.message.c_str(); }
  const std::string& message() const { return cause_.message; }
  bool internal() const { return cause_.internal; }
  int signal() const { return cause_.signal; }
  bool in_deck() const { return cause_.in_deck; }
  bool print_here() const { return print_here_; }
  /// Returns false if this rank could not agree with the others in time. They may wait for it
  /// forever: print the message, then call MPI_Abort.
  bool agreed() const { return agreed_; }

 private:
  Cause cause_;
  bool print_here_;
  bool agreed_;
};

/// Runs `phase`, in which any rank may throw, then compares the outcomes; collective. If any rank
/// threw, all throw Stopped. A rank that threw waits for the others up to `limit`, then throws
/// Stopped with agreed() false. Communication inside `phase` must not wait for a rank that may have
/// thrown; use the overload with a ProgressThread for such phases.
void agree(MPI_Comm comm, const std::function<void()>& phase,
           std::chrono::milliseconds limit = std::chrono::seconds(10));

/// Runs `phase` in a process that is alone, with or without MPI.
void agree(const std::function<void()>& phase);

/// Runs `phase`, which communicates through `progress`, and agrees over progress.world(). A rank
/// that throws tells the others, whose waits then throw as well. The time limit starts on all ranks
/// when they learn of the end of the run.
void agree(ProgressThread& progress, const std::function<void()>& phase);

}  // namespace deltapipe
