// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/observe/time_account.hpp"

#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

using namespace deltapipe;

namespace {

const TimePoint zero = TimePoint(std::chrono::hours(100));
TimePoint at(int ms) {
  return zero + std::chrono::milliseconds(ms);
}

/// A thread whose schedule is written down; all times in ms.
struct Rank {
  TimeAccount account{zero};
  Rank() { account.resume(zero); }
  void does(Activity activity, int begin, int end) {
    const Activity former = account.change(activity, at(begin));
    account.change(former, at(end));
  }
  /// Waits from `begin`; the message was sent at `sent` and is here at `end`.
  void receives(int begin, int sent, int end) {
    account.waited(at(begin), at(sent), at(end));
    account.transfer(at(sent), at(end));
  }
};

void check(const TimeReport& report, const std::vector<std::pair<Activity, int>>& expected,
           int wall, int wire, int hidden) {
  TimeReport want;
  for (const auto& [activity, ms] : expected)
    want.seconds[static_cast<std::size_t>(activity)] = ms * 1e-3;
  for (std::size_t i = 0; i < kActivities; ++i) {
    CAPTURE(i);
    CHECK(report.seconds[i] == Approx(want.seconds[i]).margin(1e-9));
  }
  CHECK(report.wall == Approx(wall * 1e-3));
  CHECK(std::accumulate(report.seconds.begin(), report.seconds.end(), 0.0) == Approx(report.wall));
  CHECK(report.wire == Approx(wire * 1e-3).margin(1e-9));
  CHECK(report.wire_hidden == Approx(hidden * 1e-3).margin(1e-9));
}

}  // namespace

// Two stages, two micro-batches: stage 1 computes a micro-batch in 10 ms, decodes in 1 ms.
TEST_CASE("A slow link is exposed communication", "[time]") {
  // Stage 0 is fast and sends at 5 and 10; each message takes 40 ms of the link: here at 45, 85.
  Rank stage_1;
  stage_1.account.waited(at(0), at(5), at(45));
  stage_1.account.transfer(at(5), at(45));
  stage_1.does(Activity::codec, 45, 46);
  stage_1.does(Activity::compute, 46, 56);
  stage_1.account.waited(at(56), at(10), at(85));
  stage_1.account.transfer(at(45), at(85));
  stage_1.does(Activity::codec, 85, 86);
  stage_1.does(Activity::compute, 86, 96);
  check(stage_1.account.take(at(100)),
        {{Activity::bubble, 5},
         {Activity::wire_exposed, 40 + 29},
         {Activity::codec, 2},
         {Activity::compute, 20},
         {Activity::other, 4}},
        100, 80, 11);
}

TEST_CASE("A slow stage is a bubble", "[time]") {
  // Stage 0 computes 40 ms per micro-batch, the link takes 5: here at 45 and 85.
  Rank stage_1;
  stage_1.receives(0, 40, 45);
  stage_1.does(Activity::codec, 45, 46);
  stage_1.does(Activity::compute, 46, 56);
  stage_1.receives(56, 80, 85);
  stage_1.does(Activity::codec, 85, 86);
  stage_1.does(Activity::compute, 86, 96);
  check(stage_1.account.take(at(100)),
        {{Activity::bubble, 40 + 24},
         {Activity::wire_exposed, 10},
         {Activity::codec, 2},
         {Activity::compute, 20},
         {Activity::other, 4}},
        100, 10, 0);
}

TEST_CASE("A slow link and a slow stage are distinguished", "[time]") {
  // 30 ms per micro-batch on stage 0, 25 ms per message: sent 30 and 60, here at 55 and 85. Stage 1
  // sends back 20 ms of gradients each time, from 66 (to 86) and 96 (to 116, told in the next
  // step).
  Rank stage_1;
  stage_1.receives(0, 30, 55);
  stage_1.does(Activity::codec, 55, 56);
  stage_1.does(Activity::compute, 56, 66);
  stage_1.receives(66, 60, 85);
  stage_1.account.transfer(at(66), at(86));
  stage_1.does(Activity::codec, 85, 86);
  stage_1.does(Activity::compute, 86, 96);
  // On the wire: 30-55, 60-86. Not waiting: 60-66 and 85-86.
  check(stage_1.account.take(at(100)),
        {{Activity::bubble, 30},
         {Activity::wire_exposed, 25 + 19},
         {Activity::codec, 2},
         {Activity::compute, 20},
         {Activity::other, 4}},
        100, 25 + 26, 7);
  stage_1.account.transfer(at(96), at(116));
  stage_1.does(Activity::compute, 100, 110);
  stage_1.account.waited(at(110), at(50), at(120));
  check(stage_1.account.take(at(120)), {{Activity::compute, 10}, {Activity::wire_exposed, 10}}, 20,
        20, 14);
}

TEST_CASE("Transfers of several channels at once count once", "[time]") {
  // The sum over channels would be 45 ms of wire and more hidden than there was time.
  Rank middle;
  middle.does(Activity::compute, 0, 20);
  middle.account.transfer(at(0), at(15));
  middle.account.transfer(at(5), at(20));
  middle.account.transfer(at(3), at(18));
  check(middle.account.take(at(20)), {{Activity::compute, 20}}, 20, 20, 20);
  // Told late and partly known already.
  middle.account.transfer(at(10), at(25));
  middle.does(Activity::compute, 20, 30);
  check(middle.account.take(at(30)), {{Activity::compute, 10}}, 10, 5, 5);
}

TEST_CASE("Nested activities interrupt each other, suspensions are left out", "[time]") {
  Rank rank;
  rank.account.change(Activity::compute, at(0));
  rank.does(Activity::cache, 2, 5);
  rank.account.waited(at(6), at(100), at(8));  // clocks differ: no more bubble than there was wait
  rank.account.change(Activity::other, at(10));
  CHECK(rank.account.open_seconds(at(10)) == Approx(0.010));
  rank.account.suspend(at(10));
  rank.account.suspend(at(11));
  rank.does(Activity::compute, 12, 40);
  rank.account.transfer(at(9), at(45));
  rank.account.resume(at(50));
  rank.account.resume(at(51));
  CHECK(rank.account.open_seconds(at(55)) == Approx(0.015));
  check(
      rank.account.take(at(60)),
      {{Activity::compute, 5}, {Activity::cache, 3}, {Activity::bubble, 2}, {Activity::other, 10}},
      20, 1, 1);
}

TEST_CASE("Interval sets merge what touches", "[time]") {
  IntervalSet set, other, none;
  for (const auto& [begin, end] : {std::pair{20, 40}, {0, 10}, {30, 50}, {10, 12}, {60, 60}})
    set.add(at(begin), at(end));
  REQUIRE(set.intervals().size() == 2);
  CHECK(set.seconds() == Approx(0.042));
  other.add(at(5), at(25));
  other.add(at(45), at(60));
  CHECK(set.seconds_outside(other, none) == Approx(0.042 - 0.007 - 0.005 - 0.005));
  CHECK(set.seconds_outside(other, other) == Approx(0.042 - 0.017));
  set.forget_before(at(30));
  CHECK(set.seconds() == Approx(0.020));
}
