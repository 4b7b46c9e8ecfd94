// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace deltapipe::test {

/// Runs the tests that the command line selects; the number of failures.
int run_tests(int argc, char** argv);

}  // namespace deltapipe::test
