// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/prediction/cholesky.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <vector>

#include "support/device_values.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

/// root root^T + I: positive definite.
std::vector<float> definite_matrix(int n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> root(static_cast<std::size_t>(n) * n), matrix(root.size());
  for (float& value : root) value = normal(random);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = i == j ? 1 : 0;
      for (int k = 0; k < n; ++k) sum += double(root[i * n + k]) * root[j * n + k] / n;
      matrix[i * n + j] = static_cast<float>(sum);
    }
  return matrix;
}

}  // namespace

TEST_CASE("a positive definite system is solved, whatever its size", "[cholesky]") {
  const int n = GENERATE(1, 2, 31, 32, 33, 77, 128, 200);
  const int columns = GENERATE(1, 5, 64, 131);
  std::mt19937 random(static_cast<unsigned>(n + columns));
  std::normal_distribution<float> normal;
  std::vector<float> matrix = definite_matrix(n, random);
  std::vector<float> solution(static_cast<std::size_t>(n) * columns), right(solution.size());
  for (float& value : solution) value = normal(random);
  for (int i = 0; i < n; ++i)
    for (int c = 0; c < columns; ++c) {
      double sum = 0;
      for (int k = 0; k < n; ++k) sum += double(matrix[i * n + k]) * solution[k * columns + c];
      right[i * columns + c] = static_cast<float>(sum);
    }
  // Only the lower triangle counts.
  for (int i = 0; i < n; ++i)
    for (int j = i + 1; j < n; ++j) matrix[i * n + j] = std::nanf("");
  const Matrix<float> a = to_device(matrix, n), b = to_device(right, columns);
  cholesky_solve(ExecSpace(), a, b);
  Kokkos::fence();
  const std::vector<float> found =
      to_host(Kokkos::View<float*, Layout, MemSpace>(b.data(), b.size()));
  for (std::size_t i = 0; i < solution.size(); ++i)
    REQUIRE(found[i] == Approx(solution[i]).margin(2e-4));
}

TEST_CASE("a matrix that is not positive definite shows as NaN", "[cholesky]") {
  const int n = GENERATE(2, 40);
  std::mt19937 random(7);
  std::vector<float> matrix = definite_matrix(n, random);
  matrix[static_cast<std::size_t>(n) * n - 1] = -1;
  const Matrix<float> a = to_device(matrix, n);
  const Matrix<float> b = to_device(std::vector<float>(n, 1.0f), 1);
  cholesky_solve(ExecSpace(), a, b);
  Kokkos::fence();
  const std::vector<float> found =
      to_host(Kokkos::View<float*, Layout, MemSpace>(b.data(), b.size()));
  CHECK(std::isnan(found.back()));
}
