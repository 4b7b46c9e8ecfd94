// SPDX-License-Identifier: BSD-3-Clause
// Watches of the progress thread while it polls: the other ranks' signs of life, signals, steps
// that stall or take too long.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// Time for which a rank that a signal interrupted tries to agree with the others. The signal may
/// come while ranks are in long passes; batch systems kill 30 s after it.
inline constexpr std::chrono::seconds kInterruptedAgreementLimit{25};

/// Used by the progress thread, except for the flags.
class RunWatch {
 public:
  /// Refers to the settings. `progress` is still under construction.
  RunWatch(ProgressThread& progress, const WatchSettings& settings)
      : progress_(progress), settings_(settings) {}

  /// Posts the receive for signs of life, if ranks are watched.
  void await_signs();
  /// The thread starts to poll.
  void begin(TimePoint now) { last_sign_ = last_watch_ = now; }
  /// Sends and awaits signs of life, checks for signals and looks at the step. Makes the run fail,
  /// or ends the process, if it has to end. Called with MPI locked.
  void look(TimePoint now);

  void set_ends_at_once(bool ends) { ends_at_once_.store(ends); }
  /// The compute thread has finished its work and agrees with others on how to end.
  void compute_thread_agrees() { agrees_.store(true); }

 private:
  void watch_signs(TimePoint now);
  void watch_interruption(TimePoint now);
  void watch_step(TimePoint now);
  void watch_stall(TimePoint now);
  void end_at_once(int signal);
  std::string own_name() const;
  void fail(std::exception_ptr error);

  ProgressThread& progress_;
  const WatchSettings& settings_;
  Ticket sign_sent_;
  std::chrono::nanoseconds sign_interval_{0};
  TimePoint next_sign_{}, last_sign_{}, last_watch_{};
  TimePoint interrupted_at_;
  std::atomic<bool> agrees_{false};
  std::atomic<bool> ends_at_once_{false};
  bool interrupted_ = false;
  /// A step that took too long, and if it was reported.
  struct Overdue {
    std::uint64_t step = 0;
    TimePoint since;
    std::string message;
    bool told = false;
  };
  std::optional<Overdue> overdue_;
  /// Stalled step that was reported to the user.
  struct Stall {
    std::uint64_t step = 0;
    TimePoint since;
  };
  std::optional<Stall> stall_;
  TimePoint next_tcp_bound_{};
  std::chrono::seconds tcp_wait_{};  ///< bound of TCP's waits; 0: not determined yet
};

}  // namespace deltapipe
