// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/progress_display.hpp"

#include <catch2/catch.hpp>

using namespace deltapipe;

TEST_CASE("Rates are those of the last steps, at every step", "[progress_display]") {
  RateMeter meter(2);
  CHECK(meter.rate().tokens_per_second == 0);
  // Half-second steps of ever more tokens: each step changes the mean over the last four.
  double last = 0;
  for (int step = 1; step <= 20; ++step) {
    meter.add(0.5 * step, std::uint64_t{100} * static_cast<std::uint64_t>(step), 10);
    const RateMeter::Rate rate = meter.rate();
    CAPTURE(step, rate.tokens_per_second);
    CHECK(rate.tokens_per_second > last);
    if (step >= 4) CHECK(rate.tokens_per_second == Approx(100 * (4 * step - 6) / 2.0));
    CHECK(rate.bytes_per_second == Approx(20));
    last = rate.tokens_per_second;
  }
}

TEST_CASE("A rate shown after several steps covers all steps since", "[progress_display]") {
  RateMeter meter(2);
  for (int step = 1; step <= 10; ++step) meter.add(step, 100, 0);
  CHECK(meter.rate().tokens_per_second == Approx(100));
  // Ten steps, the first of them slow: a window of two seconds would not see it.
  for (int step = 1; step <= 10; ++step) meter.add(20 + step, 100, 0);
  CHECK(meter.rate().tokens_per_second == Approx(1000 / 20.0));
  // Long steps: the mean over the last one.
  meter.add(130, 300, 0);
  CHECK(meter.rate().tokens_per_second == Approx(3));
}
