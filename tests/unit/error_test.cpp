#include "core/error.hpp"

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
