// SPDX-License-Identifier: BSD-3-Clause
// Time limits, and the predicted durations that a run reserves for its next parts.
#include "app/checkpoint/time_limit.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <string>

using namespace deltapipe;

namespace {

/// Sets a variable of the environment, and restores its value.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const former = std::getenv(name)) former_ = former;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { former_.empty() ? unsetenv(name_) : setenv(name_, former_.c_str(), 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::string former_;
};

TimePoint seconds_ago(double seconds) {
  return Clock::now() -
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string seconds_since_1970(double from_now) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return std::to_string(now.count() + from_now);
}

}  // namespace

TEST_CASE("Of steps up to an outer one only the last takes the longest time", "[checkpoint]") {
  ExpectedTimes times;
  CHECK(times.add_step(8));  // a start's first step does not count for the mean
  CHECK_FALSE(times.add_step(1));
  CHECK_FALSE(times.add_step(1));
  CHECK(times.add_step(10));
  CHECK(times.longest_step() == 10);
  CHECK(times.of_steps(1) == 10);
  // The mean of the last steps includes the first one.
  CHECK(times.of_steps(4) == 10 + 3 * 5);
  for (int step = 0; step < 60; ++step) times.add_step(1);
  CHECK(times.of_steps(4) == Approx(10 + 3 * (72.0 / 63)));
  for (int step = 0; step < 32; ++step) times.add_step(3);
  CHECK(times.of_steps(100) == Approx(10 + 99 * 3));
}

TEST_CASE("Times of an evaluation and a checkpoint are estimated until they are known",
          "[checkpoint]") {
  ExpectedTimes times;
  CHECK(times.of_evaluation() == 0);
  CHECK(times.of_checkpoint() == 0);
  times.set_evaluation_steps(5);
  times.set_checkpoint_bytes(300'000'000);
  for (const double seconds : {9.0, 2.0, 4.0}) times.add_step(seconds);
  CHECK(times.of_evaluation() == 5 * 3);
  CHECK(times.of_checkpoint() == 3);
  times.add_evaluation(7);
  times.add_evaluation(6);
  times.add_checkpoint(0.5);
  CHECK(times.of_evaluation() == 7);
  CHECK(times.of_checkpoint() == 0.5);
}

TEST_CASE("The first of the deck's limit and the job's end limits a run", "[checkpoint]") {
  const char* const variable = "SLURM_JOB_END_TIME";
  const Variable none(variable, "nan");
  CHECK_FALSE(TimeLimit(0, seconds_ago(100)).is_over_after(1e9));
  const TimeLimit deck(100, seconds_ago(60));
  CHECK(deck.name() == kTimeLimitKey);
  CHECK_FALSE(deck.is_over_after(30));
  CHECK(deck.is_over_after(41));
  // Ten seconds of a job are for its end.
  const Variable late(variable, seconds_since_1970(60));
  CHECK(TimeLimit(100, seconds_ago(60)).name() == kTimeLimitKey);
  const TimeLimit job(200, seconds_ago(60));
  CHECK(job.name() == "the end of the batch job");
  CHECK_FALSE(job.is_over_after(40));
  CHECK(job.is_over_after(51));
  CHECK(TimeLimit(0, seconds_ago(60)).is_over_after(51));
}
