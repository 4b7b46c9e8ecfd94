// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/clock_sync.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

using namespace deltapipe;

namespace {

/// Rank 0's clock against this one's: 5 s ahead and 10 microseconds a second faster.
std::int64_t theirs(std::int64_t mine_ns) {
  return 5'000'000'000 + mine_ns + mine_ns / 100'000;
}
double error_ns(const ClockEstimate& estimate, std::int64_t now_ns) {
  return std::abs(static_cast<double>(estimate.offset().count() - (theirs(now_ns) - now_ns)));
}
ClockExchange exchange(std::int64_t at, std::int64_t there_ns, std::int64_t back_ns) {
  return {at, theirs(at + there_ns), theirs(at + there_ns + 70'000),
          at + there_ns + 70'000 + back_ns};
}

}  // namespace

TEST_CASE("The quickest exchange says what the other clock shows", "[clock]") {
  ClockEstimate estimate;
  CHECK(estimate.offset().count() == 0);
  estimate.add({1000, 900'000, 900'500, 2500});  // 500 there, 500 back
  CHECK(estimate.offset().count() == 898'500);
  estimate.add({3000, 910'000, 910'000, 5000});  // slower: not taken
  CHECK(estimate.offset().count() == 898'500);
  estimate.add({6000, 904'400, 904'400, 6200});
  CHECK(estimate.offset().count() == 898'300);
  estimate.add({7000, 900'000, 990'000, 7001});  // impossible
  CHECK(estimate.offset().count() == 898'300);
}

TEST_CASE("A drifting clock is followed", "[clock]") {
  ClockEstimate once, always;
  once.add(exchange(0, 20'000, 30'000));
  std::mt19937 random(1);
  // Between 0.1 and 20 ms there and back, most of them long and lopsided.
  std::exponential_distribution<double> way(1e-6 / 3);
  std::int64_t now = 0;
  double worst = 0;
  for (int i = 0; i < 300; ++i) {
    now = 2'000'000'000LL * i;
    always.add(exchange(now, 100'000 + static_cast<std::int64_t>(way(random)),
                        100'000 + static_cast<std::int64_t>(way(random))));
    now += 1'900'000'000LL;
    if (i >= 50) worst = std::max(worst, error_ns(always, now));  // after the first good ones
  }
  CHECK(worst < 3e6);
  CHECK(error_ns(once, now) > 5.9e6);  // ten minutes at 10 microseconds a second
}
