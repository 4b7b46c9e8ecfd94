// SPDX-License-Identifier: BSD-3-Clause
// Catch2's own code, compiled once for both test programs: no other source of theirs takes as long.
#define CATCH_CONFIG_RUNNER
#include "support/catch_runner.hpp"

#include <catch2/catch.hpp>

namespace deltapipe::test {

int run_tests(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}

}  // namespace deltapipe::test
