// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/run_output.hpp"

#include <chrono>
#include <exception>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/observe/interruption.hpp"

namespace deltapipe {

namespace {

/// For progress threads, which answer within some 20 ms unless their processors are very busy.
constexpr std::chrono::milliseconds kAnswerLimit{300};
constexpr std::chrono::seconds kLateAnswerLimit{3};

}  // namespace

void RunOutput::close(RunStatus status, const std::string& reason) {
  if (!file_) return;
  try {
    file_->close(status, reason);
  } catch (const UserError&) {
  }
}

/// Handles the exception that is being handled.
void RunOutput::close_after_exception() {
  try {
    throw;
  } catch (const Interrupted& interrupted) {
    close_interrupted(interrupted.signal());
  } catch (const StopRequested& stop) {
    if (stop.signal() != 0)
      close_interrupted(stop.signal());
    else
      close(RunStatus::failed, stop.what());
  } catch (const std::exception& error) {
    close(RunStatus::failed, error.what());
  }
}

/// Launchers send SIGTERM as well when a rank has died: a run that has lost a rank was not
/// interrupted but failed. Throws PeerLost then.
void RunOutput::close_interrupted(int signal) {
  if (!file_) return;
  const std::string interrupted = Interrupted(signal).what();
  std::vector<int> silent = progress_.silent_ranks(kAnswerLimit);
  if (silent.empty()) return close(RunStatus::interrupted, interrupted);
  std::string lost = "lost contact with ";
  for (const int rank : silent)
    lost += (rank == silent.front() ? "" : ", ") + progress_.name_of(rank);
  lost += " before " + name_of_signal(signal) + " came: its process or machine has ended";
  // Open MPI kills a second after the signal: what is known by now is on the disk by then.
  close(RunStatus::failed, lost);
  silent = progress_.silent_ranks(kLateAnswerLimit);
  if (silent.empty()) return close(RunStatus::interrupted, interrupted);
  throw PeerLost(lost);
}

}  // namespace deltapipe
