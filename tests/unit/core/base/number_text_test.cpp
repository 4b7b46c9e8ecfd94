// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/number_text.hpp"

#include <catch2/catch.hpp>
#include <limits>

#include "app/output/progress_display.hpp"

using namespace deltapipe;

TEST_CASE("A NaN is nan, with either sign", "[number_text]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {nan, -nan}) {
    CHECK(number_text("%.4f", value) == "nan");
    CHECK(number_text("%6.3g", value) == "   nan");
    CHECK(with_prefix(value) == "nan");
  }
  CHECK(number_text("%.2f", -infinity) == "-inf");
  CHECK(number_text("%g", -0.0) == "-0");
  CHECK(number_text("%.3f", 2.0) == "2.000");
  const std::string large = number_text("%f", 1e300);
  CHECK(large.size() == 301 + 7);
  CHECK(large.ends_with(".000000"));
}
