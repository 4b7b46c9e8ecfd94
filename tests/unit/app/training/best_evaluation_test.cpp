// SPDX-License-Identifier: BSD-3-Clause
#include "app/training/best_evaluation.hpp"

#include <catch2/catch.hpp>
#include <limits>

using namespace deltapipe;

TEST_CASE("Only a lower loss is a better one", "[best_evaluation]") {
  BestEvaluation best;
  CHECK_FALSE(best.is_known());
  CHECK(best.add(0, 3));
  CHECK(best.add(10, 2));
  CHECK_FALSE(best.add(20, 2));
  CHECK_FALSE(best.add(30, 2.5));
  CHECK(best.is_known());
  CHECK(best.step() == 10);
  CHECK(best.loss() == 2);
  CHECK(best.since() == 2);
  CHECK(best.add(40, 1));
  CHECK(best.step() == 40);
  CHECK(best.since() == 0);
}

TEST_CASE("Losses that are no numbers are never the best", "[best_evaluation]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  BestEvaluation best;
  CHECK_FALSE(best.add(1, nan));
  CHECK_FALSE(best.add(2, infinity));
  CHECK_FALSE(best.is_known());
  CHECK(best.since() == 2);
  CHECK(best.add(3, 5));
  CHECK_FALSE(best.add(4, nan));
  CHECK(best.step() == 3);
  CHECK(best.since() == 1);
}
