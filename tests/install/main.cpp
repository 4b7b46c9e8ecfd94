// SPDX-License-Identifier: BSD-3-Clause
// Uses all public headers of core, a function and, through a View, Kokkos of the installed package.
#include <deltapipe/core/core.hpp>
#include <iostream>

int main(int argc, char** argv) {
  Kokkos::ScopeGuard kokkos(argc, argv);
  const deltapipe::Matrix<float> x_NC("deltapipe::Consumer::x", 3, 5);
  if (x_NC.size() != 15) return 1;
  const deltapipe::UserError error({.what = "out of range", .file = "a.toml", .line = 2});
  if (std::string(error.what()) != "a.toml:2: out of range") return 1;
  std::cout << deltapipe::version() << " " << deltapipe::revision() << "\n";
  return 0;
}
