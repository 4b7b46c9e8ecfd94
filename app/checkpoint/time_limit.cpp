// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/time_limit.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>

namespace deltapipe {

namespace {

/// The batch system kills at the job's end; closing files and the end of MPI need a moment.
constexpr double kJobMarginSeconds = 10;
constexpr const char* kJobEndVariable = "SLURM_JOB_END_TIME";  // seconds since 1970

/// Until the batch job ends; 0: unknown, or of a job that is over.
double seconds_of_job() {
  const char* const text = std::getenv(kJobEndVariable);
  if (text == nullptr) return 0;
  const double end = std::strtod(text, nullptr);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return std::isfinite(end) ? std::max(0.0, end - kJobMarginSeconds - now.count()) : 0;
}

}  // namespace

TimeLimit::TimeLimit(double seconds, TimePoint start) : seconds_(seconds), start_(start) {
  const double job = seconds_of_job();
  if (job == 0) return;
  const double limit = seconds_between(start_, Clock::now()) + job;
  if (seconds_ > 0 && seconds_ <= limit) return;
  seconds_ = limit;
  name_ = "the end of the batch job";
}

bool TimeLimit::is_over_after(double seconds) const {
  return seconds_ > 0 && seconds_between(start_, Clock::now()) + seconds >= seconds_;
}

bool ExpectedTimes::add_step(double seconds) {
  // A start's first step takes longer, to allocate memory: it counts only until there is another.
  steps_ = ++count_ <= 2 ? seconds : steps_ + seconds;
  constexpr std::size_t kRecent = 32;
  recent_steps_.push_back(seconds);
  if (recent_steps_.size() > kRecent) recent_steps_.pop_front();
  if (seconds <= longest_step_) return false;
  longest_step_ = seconds;
  return true;
}

void ExpectedTimes::add_evaluation(double seconds) {
  longest_evaluation_ = std::max(longest_evaluation_, seconds);
}

double ExpectedTimes::mean_step() const {
  return count_ < 2 ? steps_ : steps_ / static_cast<double>(count_ - 1);
}

double ExpectedTimes::mean_recent_step() const {
  const double sum = std::accumulate(recent_steps_.begin(), recent_steps_.end(), 0.0);
  return sum / static_cast<double>(std::max<std::size_t>(1, recent_steps_.size()));
}

/// A link or a machine may have become slower.
double ExpectedTimes::of_steps(std::uint64_t count) const {
  const double each = std::max(mean_step(), mean_recent_step());
  return static_cast<double>(count - 1) * each + longest_step_;
}

/// Before the first evaluation: as if its steps were training steps, which usually take longer.
double ExpectedTimes::of_evaluation() const {
  if (longest_evaluation_ > 0) return longest_evaluation_;
  return static_cast<double>(evaluation_steps_) * mean_step();
}

double ExpectedTimes::of_checkpoint() const {
  constexpr double kBytesPerSecond = 1e8;  // of a disk that is not known yet
  return checkpoint_ > 0 ? checkpoint_ : static_cast<double>(checkpoint_bytes_) / kBytesPerSecond;
}

}  // namespace deltapipe
