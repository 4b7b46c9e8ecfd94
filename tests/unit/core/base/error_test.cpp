// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/error.hpp"

#include <catch2/catch.hpp>

TEST_CASE("a user error is one line with place, value and remedy") {
  const deltapipe::UserError error({.what = "bits is out of range",
                                    .file = "a.toml",
                                    .line = 3,
                                    .column = 8,
                                    .value = "9",
                                    .remedy = "use 1 to 8"});
  CHECK(std::string(error.what()) == "a.toml:3:8: bits is out of range (got 9); use 1 to 8");
}

TEST_CASE("a message shows text from outside on one line, whole and harmless") {
  using namespace std::string_literals;
  const deltapipe::UserError error({.what = "token '\x1b[2J' is\nodd",
                                    .file = "a\0b\xff.txt"s,
                                    .value = std::string(1'000'000, 'x'),
                                    .remedy = "use é"});
  CHECK(std::string(error.what()) == "a\\x00b\\xFF.txt: token '\\x1B[2J' is\\nodd (got " +
                                         std::string(200, 'x') + "...); use é");
}
