// How all ranks stop together, with one message.
#pragma once

#include <mpi.h>

#include <exception>
#include <functional>
#include <string>

#include "comm/progress_thread.hpp"

namespace deltapipe {

/// Thrown on every rank when any rank failed. The one message is that of the lowest rank that
/// failed by itself; rank 0 of the communicator prints it.
class Stopped : public std::exception {
 public:
  Stopped(std::string message, bool print_here, bool internal)
      : message_(std::move(message)), print_here_(print_here), internal_(internal) {}
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const { return message_; }
  bool print_here() const { return print_here_; }
  /// True when the cause is no user's mistake but a bug (anything but UserError).
  bool internal() const { return internal_; }

 private:
  std::string message_;
  bool print_here_;
  bool internal_;
};

/// Collective: runs `phase`, in which any rank may throw, then compares notes. If any rank threw,
/// all throw Stopped. Communication inside `phase` must not wait for a rank that may have thrown:
/// do that part in the other overload.
void agree(MPI_Comm comm, const std::function<void()>& phase);

/// The same over progress.world(), for phases that communicate through `progress`: a rank that
/// throws tells the others, whose waits then throw as well.
void agree(ProgressThread& progress, const std::function<void()>& phase);

}  // namespace deltapipe
