// SPDX-License-Identifier: BSD-3-Clause
// Catch2's runner with Kokkos started once around all tests.
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <iostream>

#include "core/base/error.hpp"
#include "core/base/parallel/helper_thread.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/kernels/gemm/blas.hpp"
#include "support/catch_runner.hpp"
#include "support/kernel_labels.hpp"

DELTAPIPE_REMEMBER_CORES_FIRST();

int main(int argc, char** argv) {
  deltapipe::remember_process_cores();
  deltapipe::restart_with_better_settings(argv);  // threads that spin make the tests slow
  deltapipe::test::watch_without_fences();
  Kokkos::ScopeGuard kokkos(argc, argv);
  try {
    deltapipe::start_host_team(std::max(1, deltapipe::threads_of_environment()));
  } catch (const deltapipe::UserError& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  deltapipe::test::watch_kernel_labels();
  const int failures = deltapipe::test::run_tests(argc, argv);
  return failures + deltapipe::test::report_kernel_labels();
}
