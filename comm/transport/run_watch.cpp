// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/run_watch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "comm/transport/tcp_waits.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/interruption.hpp"

namespace deltapipe {

namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr int kSignTag = 3;
constexpr int kSignsPerTimeout = 8;
constexpr std::chrono::seconds kLongestSignInterval{30};
/// Grace of a step that takes too long: until its thread is given up, then the process.
constexpr nanoseconds kLateThread = std::chrono::seconds(2);
constexpr nanoseconds kLostThread = std::chrono::seconds(10);
/// A step is stalled if it lasts longer than this multiple of the longest earlier step.
constexpr double kStallFactor = 10;
constexpr nanoseconds kTcpBoundInterval = std::chrono::seconds(5);
/// Time that the compute thread has after a signal if nothing is lost without it. Later ranks wait
/// longer, so that the first rank reports, and its end terminates them before they report.
constexpr nanoseconds kPromptEnd = milliseconds(700);
constexpr nanoseconds kPromptTurn = milliseconds(200);
constexpr int kLatestRank = 10;
/// A rank that waits gives the awaited rank this much time to report first.
constexpr double kWaitingGraceSeconds = 5;

}  // namespace

std::string RunWatch::own_name() const {
  return progress_.name_of(progress_.rank());
}

void RunWatch::fail(std::exception_ptr error) {
  progress_.fail(std::move(error));
}

void RunWatch::await_signs() {
  if (settings_.timeout_seconds <= 0 || progress_.size() == 1) return;
  sign_interval_ = std::min<nanoseconds>(
      kLongestSignInterval, std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(
                                settings_.timeout_seconds / kSignsPerTimeout)));
  const int rank = progress_.rank(), size = progress_.size();
  progress_.receive_always(fmt::format("sign of life to rank {}", rank), nullptr, 0, MPI_INT,
                           (rank + size - 1) % size, kSignTag,
                           [this](int) { last_sign_ = Clock::now(); });
}

void RunWatch::look(TimePoint now) {
  if (const int signal = noted_signal(); signal != 0 && !interrupted_) {
    interrupted_ = true;
    interrupted_at_ = now;
    fail(std::make_exception_ptr(Interrupted(signal)));
  }
  watch_interruption(now);
  watch_step(now);
  watch_stall(now);
  watch_signs(now);
}

void RunWatch::watch_signs(TimePoint now) {
  if (sign_interval_ == nanoseconds(0)) return;
  // A rank that was itself stopped or delayed cannot tell how long others were silent.
  if (now - last_watch_ > sign_interval_) last_sign_ = now;
  last_watch_ = now;
  if (now >= next_sign_ && (!sign_sent_ || progress_.done(sign_sent_))) {
    const int rank = progress_.rank();
    sign_sent_ = progress_.send_empty(fmt::format("sign of life from rank {}", rank),
                                      (rank + 1) % progress_.size(), kSignTag);
    next_sign_ = now + sign_interval_;
  }
  const double silent = seconds_between(last_sign_, now);
  if (silent < settings_.timeout_seconds) return;
  const int peer = (progress_.rank() + progress_.size() - 1) % progress_.size();
  const std::string awaited = progress_.awaited().name;
  fail(std::make_exception_ptr(PeerLost(fmt::format(
      "no sign of life from {} for {} s{}; its process was stopped, or its machine or network is "
      "gone (pipeline.timeout sets how long to wait)",
      progress_.name_of(peer), std::lround(silent),
      awaited.empty() ? ""
                      : fmt::format(", while rank {} waited for {}", progress_.rank(), awaited)))));
  last_sign_ = now;
}

/// Ends this process; the launcher then ends the other ranks.
void RunWatch::end_at_once(int signal) {
  std::fprintf(stderr, "\ndeltapipe: error: %s\n", Interrupted(signal).what());
  ::_exit(kSignalStatus + signal);
}

/// Ends the process if the compute thread does not react to a signal. While it waits for a disk
/// that hangs, it checks for no signals or cannot close its files.
void RunWatch::watch_interruption(TimePoint now) {
  if (!interrupted_ || agrees_.load()) return;
  const int signal = noted_signal();
  const nanoseconds waited = now - interrupted_at_;
  if (ends_at_once_.load() &&
      waited > kPromptEnd + std::min(progress_.rank(), kLatestRank) * kPromptTurn)
    end_at_once(signal);
  if (waited < kInterruptedAgreementLimit) return;
  std::fprintf(stderr,
               "\ndeltapipe: error: interrupted by %s, and %s does not end: its disk or "
               "device hangs\n",
               name_of_signal(signal).c_str(), own_name().c_str());
  MPI_Abort(progress_.control(), kSignalStatus + signal);
}

/// Reports a stall. A link that lost messages for seconds delays a run for longer, although all
/// ranks are alive and nothing is wrong.
void RunWatch::watch_stall(TimePoint now) {
  // Repeated, since MPI opens connections when it first sends.
  if (now >= next_tcp_bound_ && progress_.size() > 1) {
    tcp_wait_ = bound_tcp_waits();
    next_tcp_bound_ = now + kTcpBoundInterval;
  }
  if (interrupted_) return;
  if (stall_) {
    const std::optional<StepWatch::State> state = progress_.step_watch().state();
    if (state && state->step == stall_->step) return;
    if (progress_.step_watch().completed() >= stall_->step)
      std::fprintf(stderr,
                   "\ndeltapipe: %s: step %llu is complete, %.0f s after that wait began; the run "
                   "continues\n",
                   own_name().c_str(), static_cast<unsigned long long>(stall_->step),
                   seconds_between(stall_->since, now));
    stall_.reset();
    return;
  }
  const ProgressThread::Awaited awaited = progress_.awaited();
  const double seconds = seconds_between(awaited.since, now);
  if (awaited.failed || awaited.name.empty() || seconds < settings_.stall_seconds) return;
  const std::optional<StepWatch::State> state = progress_.step_watch().state();
  if (!state || state->longest_seconds == 0 || seconds < kStallFactor * state->longest_seconds)
    return;
  stall_ = Stall{state->step, now - std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(seconds))};
  progress_.step_watch().stalls();
  std::fprintf(
      stderr,
      "\ndeltapipe: warning: %s has been waiting for %.0f s in step %llu (%s); the longest step so "
      "far took %.2g s. Another rank is slow or was stopped, or a link has lost messages, which "
      "TCP sends again after waits of up to %lld s: the run continues when they work again\n",
      own_name().c_str(), seconds, static_cast<unsigned long long>(state->step),
      awaited.name.c_str(), state->longest_seconds, static_cast<long long>(tcp_wait_.count()));
}

/// Watches a step that takes too long. A thread that does not return from a kernel cannot be
/// stopped. After a grace period this thread reports why the run ends, and ends the process after
/// the other ranks have ended in order.
void RunWatch::watch_step(TimePoint now) {
  if (settings_.step_timeout_seconds <= 0) return;
  const std::optional<StepWatch::State> state = progress_.step_watch().state();
  if (overdue_) {
    if (!state || state->step != overdue_->step) return;  // it came
    if (!overdue_->told && now - overdue_->since > kLateThread) {
      std::fprintf(stderr, "\ndeltapipe: error: %s\n", overdue_->message.c_str());
      overdue_->told = true;
    }
    if (now - overdue_->since > kLostThread) MPI_Abort(progress_.control(), EXIT_FAILURE);
    return;
  }
  if (!state) return;
  const double seconds = seconds_between(state->since, now);
  const std::string awaited = progress_.awaited().name;
  const double grace = awaited.empty() ? 0 : kWaitingGraceSeconds;
  if (seconds < settings_.step_timeout_seconds + grace) return;
  const UserError error(
      {.what = fmt::format("{} is in step {} for {} s{}, and waits for {}", own_name(), state->step,
                           std::lround(seconds),
                           state->doing.empty() ? "" : fmt::format(", at '{}'", state->doing),
                           awaited.empty() ? "nobody" : awaited),
       .remedy = "find out what stops it (its machine, its device, its disk) and start the run "
                 "again; pipeline.step_timeout limits the duration of a step"});
  overdue_ = Overdue{state->step, now, error.what(), !awaited.empty()};
  fail(std::make_exception_ptr(error));
  if (awaited.empty()) progress_.tell_others_to_stop(0);
}

}  // namespace deltapipe
