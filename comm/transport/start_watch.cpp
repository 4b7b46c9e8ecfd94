// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/start_watch.hpp"

#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "comm/transport/launch.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

namespace {

constexpr double kSeconds = 120;
constexpr double kMostSeconds = 1e8;
constexpr const char* kVariable = "DELTAPIPE_START_TIMEOUT";
/// The first rank reports first, and its end terminates the others before they report.
constexpr int kLatestTimer = 10;  ///< seconds after the first

std::array<char, 512> message;  // for the signal handler

double limit_seconds(int rank) {
  const char* const text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') return kSeconds;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end == '\0' && std::isfinite(seconds) && seconds >= 0)
    return std::min(seconds, kMostSeconds);
  if (rank > 0) return kSeconds;  // only the first rank reports it
  throw UserError(
      {.what = std::string(kVariable) + " is not a number of seconds",
       .value = text,
       .remedy = "set it to the seconds that the ranks may need to start; 0 waits forever"});
}

double deadline = 0;  // of the timer, on seconds_now()'s clock; for the signal handler
volatile std::sig_atomic_t was_late = 0;
constexpr double kLate = 0.5;  ///< seconds; ranks report one second apart

double seconds_now() {
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// A process that was stopped gets the signal when it is continued, which a launcher does to end it
/// after another rank has reported. It reports only if nobody ends it.
void end_process(int) {
  if (was_late == 0 && seconds_now() > deadline + kLate) {
    was_late = 1;
    (void)::alarm(3);
    return;
  }
  (void)!::write(STDERR_FILENO, message.data(), std::strlen(message.data()));
  ::_exit(1);
}

/// Sets the timer; 0 disables it.
void set_timer(double seconds) {
  itimerval time{};
  time.it_value.tv_sec = static_cast<time_t>(seconds);
  time.it_value.tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
  deadline = seconds_now() + seconds;
  was_late = 0;
  (void)::setitimer(ITIMER_REAL, &time, nullptr);
}

/// Ends the process with `message` after the given time.
void end_process_after(double seconds, int rank) {
  struct sigaction action {};
  action.sa_handler = end_process;
  sigemptyset(&action.sa_mask);
  sigaction(SIGALRM, &action, nullptr);
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  (void)::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);  // a launcher may have blocked it
  set_timer(seconds + std::min(rank, kLatestTimer));
}

}  // namespace

StartWatch::StartWatch() {
  const int rank = launch_of_environment().rank;
  const double seconds = limit_seconds(rank);
  if (seconds == 0) return;
  (void)std::snprintf(
      message.data(), message.size(),
      "\ndeltapipe: error: the ranks did not connect within %g s: a process was stopped or "
      "has not started, or the network between the machines does not carry MPI; start them again, "
      "or set %s to the seconds that they need (0: forever)\n",
      seconds, kVariable);
  end_process_after(seconds, rank);
}

StartWatch::~StartWatch() {
  stop();
}

void StartWatch::stop() noexcept {
  set_timer(0);
  std::signal(SIGALRM, SIG_DFL);
}

void watch_end(int rank, double seconds) noexcept {
  static bool is_watched = false;
  if (std::exchange(is_watched, true) || seconds <= 0) return;
  seconds = std::min(seconds, kMostSeconds);
  (void)std::snprintf(
      message.data(), message.size(),
      "\ndeltapipe: error: the ranks have finished their work, but MPI has not ended within %g s "
      "(pipeline.timeout): a process was stopped, or its machine or network is gone; what the run "
      "has written stays\n",
      seconds);
  end_process_after(seconds, rank);
}

}  // namespace deltapipe
