// SPDX-License-Identifier: BSD-3-Clause
// Products of fp32 matrices, as one call and divided among threads, against sums in double.
#include "core/kernels/gemm/gemm.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "support/device_values.hpp"
#include "support/finite_differences.hpp"

using namespace deltapipe;
using deltapipe::test::random_values;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A matrix in memory. The gaps between its rows are NaN and must be neither read nor written.
struct Stored {
  int rows, columns;
  std::size_t stride;
  std::vector<float> values;

  Stored(int height, int width, int gap, const std::vector<float>& of)
      : rows(height), columns(width), stride(width + gap), values(stride * height, kNan) {
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j)
        (*this)(i, j) = of[static_cast<std::size_t>(i) * columns + j];
  }
  float& operator()(int i, int j) { return values[i * stride + j]; }
  float operator()(int i, int j) const { return values[i * stride + j]; }
  bool kept_its_gaps() const {
    for (int i = 0; i < rows; ++i)
      for (std::size_t j = columns; j < stride; ++j)
        if (!std::isnan(values[i * stride + j])) return false;
    return true;
  }
};

struct Operands {
  Transpose op_a, op_b;
  int M, N, K;
  Stored a, b;

  Operands(Transpose turn_a, Transpose turn_b, int m, int n, int k, int gap)
      : op_a(turn_a),
        op_b(turn_b),
        M(m),
        N(n),
        K(k),
        a(turn_a == Transpose::yes ? k : m, turn_a == Transpose::yes ? m : k, gap,
          random_values<float>(static_cast<std::size_t>(m) * k, 1)),
        b(turn_b == Transpose::yes ? n : k, turn_b == Transpose::yes ? k : n, gap,
          random_values<float>(static_cast<std::size_t>(n) * k, 2)) {}

  float& a_at(int i, int k) { return op_a == Transpose::yes ? a(k, i) : a(i, k); }
  float& b_at(int k, int j) { return op_b == Transpose::yes ? b(j, k) : b(k, j); }

  Stored product(float alpha, float beta, float before) const {
    Stored c(M, N, 3, std::vector<float>(static_cast<std::size_t>(M) * N, before));
    const auto a_device = to_device(a.values, static_cast<int>(a.stride));
    const auto b_device = to_device(b.values, static_cast<int>(b.stride));
    const auto c_device = to_device(c.values, static_cast<int>(c.stride));
    const auto part = [](float* data, const Stored& of) {
      return strided_matrix(data, of.rows, of.columns, of.stride);
    };
    gemm(ExecSpace(), op_a, op_b, alpha, part(a_device.data(), a), part(b_device.data(), b), beta,
         part(c_device.data(), c));
    c.values = to_host(c_device);
    return c;
  }
};

/// Largest difference from sums in double, in units of a bound for rounding: each of K additions
/// rounds once, to a sum of at most that size.
double worst_error(Operands of, float alpha, float beta, float before) {
  const Stored c = of.product(alpha, beta, before);
  REQUIRE(c.kept_its_gaps());
  double worst = 0;
  for (int i = 0; i < of.M; ++i)
    for (int j = 0; j < of.N; ++j) {
      double sum = 0, size = 0;
      for (int k = 0; k < of.K; ++k) {
        const double term = static_cast<double>(of.a_at(i, k)) * of.b_at(k, j);
        sum += term;
        size += std::abs(term);
      }
      const double first = beta == 0 ? 0 : static_cast<double>(beta) * before;
      const double bound = (of.K + 3) * 6e-8 * (std::abs(alpha) * size + std::abs(first));
      const double error = std::abs(c(i, j) - (alpha * sum + first));
      worst = std::max(worst, !(error >= 0) ? kInfinity : error == 0 ? 0 : error / bound);
    }
  return worst;
}

}  // namespace

TEST_CASE("Products of fp32 matrices are sums of products", "[kernels][gemm][threads]") {
  const auto op_a = GENERATE(Transpose::no, Transpose::yes);
  const auto op_b = GENERATE(Transpose::no, Transpose::yes);
  const auto check = [&](int M, int N, int K, int gap, float alpha, float beta) {
    CAPTURE(op_a == Transpose::yes, op_b == Transpose::yes, M, N, K, gap, alpha, beta);
    CHECK(worst_error({op_a, op_b, M, N, K, gap}, alpha, beta, beta == 0 ? kNan : 1.5f) <= 1);
  };
  SECTION("each height, widths around vectors") {
    for (int M = 1; M <= 13; ++M)
      for (const int N : {1, 2, 3, 7, 16, 17, 33, 64, 65, 131}) check(M, N, 9, M % 3, 1, 0);
  }
  SECTION("depths around blocks") {
    for (const int K : {1, 2, 7, 16, 17, 33, 383, 384, 385, 769, 1025}) check(7, 67, K, 5, 1, 1);
  }
  SECTION("products that threads share") {
    for (const int M : {33, 337, 673}) check(M, 220, 117, 0, 1, 0);
    for (const int N : {17, 769, 1537}) check(343, N, 101, 1, 1, 0);
  }
  SECTION("factors") {
    for (const float alpha : {1.0f, -0.75f})
      for (const float beta : {0.0f, 1.0f, -0.5f, 3.0f}) {
        check(8, 70, 20, 2, alpha, beta);
        check(8, 35, 400, 2, alpha, beta);
      }
  }
}

TEST_CASE("Products of fp32 matrices show NaN and infinities, and only where they are",
          "[kernels][gemm]") {
  const auto op_a = GENERATE(Transpose::no, Transpose::yes);
  const auto op_b = GENERATE(Transpose::no, Transpose::yes);
  const auto value = GENERATE(as<float>{}, kNan, kInfinity, -kInfinity);
  Operands of(op_a, op_b, 15, 139, 397, 2);
  const Stored before = of.product(1, 0, kNan);
  of.a_at(13, 391) = value;
  of.b_at(5, 138) = value;
  const Stored after = of.product(1, 0, kNan);
  for (int i = 0; i < of.M; ++i)
    for (int j = 0; j < of.N; ++j) {
      CAPTURE(i, j, value, after(i, j));
      if (i == 13 || j == 138)
        CHECK_FALSE(std::isfinite(after(i, j)));
      else
        CHECK(after(i, j) == before(i, j));
    }
}
