// SPDX-License-Identifier: BSD-3-Clause
// Products of fp32 in tiles, against sums in double, and against themselves where bits must not
// depend on what else is multiplied.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "core/base/parallel/host_team.hpp"
#include "core/kernels/gemm/gemm.hpp"
#include "core/kernels/gemm/host_sgemm.hpp"
#include "core/kernels/gemm/sgemm_library.hpp"
#include "support/device_values.hpp"
#include "support/finite_differences.hpp"

using namespace deltapipe;
using deltapipe::test::random_values;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// In memory as it is multiplied with; between rows is NaN, which must be neither read nor written.
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

  float a_at(int i, int k) const { return op_a == Transpose::yes ? a(k, i) : a(i, k); }
  float b_at(int k, int j) const { return op_b == Transpose::yes ? b(j, k) : b(k, j); }
  float& a_at(int i, int k) { return op_a == Transpose::yes ? a(k, i) : a(i, k); }
  float& b_at(int k, int j) { return op_b == Transpose::yes ? b(j, k) : b(k, j); }

  /// Rows [row, row + rows) and columns [column, column + columns) of the product.
  void multiply(int row, int rows, int column, int columns, float alpha, float beta,
                Stored& c) const {
    tiles::sgemm(op_a, op_b, rows, columns, K, alpha,
                 a.values.data() + (op_a == Transpose::yes ? row : row * a.stride), a.stride,
                 b.values.data() + (op_b == Transpose::yes ? column * b.stride : column), b.stride,
                 beta, c.values.data() + row * c.stride + column, c.stride);
  }
  Stored product(float alpha, float beta, float before) const {
    Stored c(M, N, 3, std::vector<float>(static_cast<std::size_t>(M) * N, before));
    multiply(0, M, 0, N, alpha, beta, c);
    return c;
  }
};

/// Largest difference from sums in double, in units of a bound for rounding: each of K additions
/// rounds once, to a sum of at most that size.
double worst_error(const Operands& of, float alpha, float beta, float before) {
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

bool same_bits(const Stored& a, const Stored& b) {
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < a.columns; ++j)
      if (a(i, j) != b(i, j)) return false;
  return true;
}

}  // namespace

TEST_CASE("Products in tiles are sums of products", "[kernels][gemm]") {
  const auto op_a = GENERATE(Transpose::no, Transpose::yes);
  const auto op_b = GENERATE(Transpose::no, Transpose::yes);
  const auto check = [&](int M, int N, int K, int gap, float alpha, float beta) {
    CAPTURE(op_a == Transpose::yes, op_b == Transpose::yes, M, N, K, gap, alpha, beta);
    CHECK(worst_error({op_a, op_b, M, N, K, gap}, alpha, beta, beta == 0 ? kNan : 1.5f) <= 1);
  };
  SECTION("each height and width of a tile") {
    for (int M = 1; M <= 13; ++M)
      for (const int N : {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 79, 127, 131})
        check(M, N, 9, M % 3, 1, 0);
  }
  SECTION("depths around those of blocks") {
    for (const int K : {1, 2, 7, 8, 15, 16, 17, 31, 33, 383, 384, 385, 393, 767, 769, 1025})
      check(7, 67, K, 5, 1, 1);
  }
  SECTION("heights and widths around those of blocks") {
    for (const int M : {335, 336, 337, 342, 673}) check(M, 20, 17, 0, 1, 0);
    for (const int N : {767, 768, 769, 833, 1537}) check(343, N, 5, 1, 1, 0);
  }
  SECTION("factors") {
    for (const float alpha : {1.0f, -0.75f, 0.0f})
      for (const float beta : {0.0f, 1.0f, -0.5f, 3.0f}) {
        check(8, 70, 20, 2, alpha, beta);
        check(8, 35, 400, 2, alpha, beta);
      }
  }
}

TEST_CASE("Products in tiles without terms, rows or columns", "[kernels][gemm]") {
  const auto op_a = GENERATE(Transpose::no, Transpose::yes);
  const auto op_b = GENERATE(Transpose::no, Transpose::yes);
  Stored c(3, 5, 1, std::vector<float>(15, 2.0f));
  const float one = 1;
  tiles::sgemm(op_a, op_b, 3, 5, 0, 1, &one, 1, &one, 1, 0.5f, c.values.data(), c.stride);
  CHECK(same_bits(c, Stored(3, 5, 1, std::vector<float>(15, 1.0f))));
  tiles::sgemm(op_a, op_b, 0, 5, 4, 1, nullptr, 1, &one, 1, 0, nullptr, 1);
  tiles::sgemm(op_a, op_b, 3, 0, 4, 1, &one, 1, nullptr, 1, 0, nullptr, 1);
  tiles::sgemm(op_a, op_b, 3, 5, 0, 1, nullptr, 1, nullptr, 1, 0, c.values.data(), c.stride);
  CHECK(same_bits(c, Stored(3, 5, 1, std::vector<float>(15, 0.0f))));
  CHECK(c.kept_its_gaps());
}

TEST_CASE("Products in tiles show NaN and infinities, and only where they are", "[kernels][gemm]") {
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

TEST_CASE("Huge and tiny numbers in products in tiles", "[kernels][gemm]") {
  Operands of(Transpose::no, Transpose::yes, 6, 64, 2, 0);
  const auto fill = [&](float a0, float b0, float a1, float b1) {
    for (int i = 0; i < of.M; ++i) {
      of.a_at(i, 0) = a0;
      of.a_at(i, 1) = a1;
    }
    for (int j = 0; j < of.N; ++j) {
      of.b_at(0, j) = b0;
      of.b_at(1, j) = b1;
    }
    return of.product(1, 0, kNan)(5, 63);
  };
  CHECK(fill(3e38f, 1, 3e38f, -1) == 0);
  CHECK(fill(2e38f, 1, 2e38f, 1) == kInfinity);
  CHECK(fill(1e-20f, 1e-10f, 0, 0) == Approx(1e-30f));
#if defined(__FMA__) || defined(__aarch64__)
  // The product is not rounded before it is added.
  const float x = 1 + 0x1p-23f;
  CHECK(fill(x * x, -1, x, x) == 0x1p-46f);
#endif
}

// Threads divide products: what a row or column is must not depend on how.
TEST_CASE("Bits of products in tiles depend on rows and columns alone",
          "[kernels][gemm][threads]") {
  const auto op_a = GENERATE(Transpose::no, Transpose::yes);
  const auto op_b = GENERATE(Transpose::no, Transpose::yes);
  const float alpha = GENERATE(1.0f, 0.7f), beta = alpha == 1 ? 0.0f : 0.3f, before = 1.9f;
  const Operands of(op_a, op_b, 347, 171, 801, 1);
  const Stored whole = of.product(alpha, beta, before);
  const Stored untouched(of.M, of.N, 3,
                         std::vector<float>(static_cast<std::size_t>(of.M) * of.N, before));
  struct Cut {
    int rows, columns;
  };
  for (const Cut cut : {Cut{1, 1}, {5, 16}, {6, 64}, {7, 65}, {340, 3}, {2, 170}}) {
    CAPTURE(op_a == Transpose::yes, op_b == Transpose::yes, alpha, cut.rows, cut.columns);
    Stored parts = untouched;
    for (int row = 0; row < of.M; row += cut.rows)
      for (int column = 0; column < of.N; column += cut.columns)
        of.multiply(row, std::min(cut.rows, of.M - row), column,
                    std::min(cut.columns, of.N - column), alpha, beta, parts);
    CHECK(same_bits(parts, whole));
  }
  Stored by_threads = untouched;
  constexpr int kParts = 7;
  HostTeam::instance().run(kParts, [&](int part) {
    const int first = of.M * part / kParts;
    of.multiply(first, of.M * (part + 1) / kParts - first, 0, of.N, alpha, beta, by_threads);
  });
  CHECK(same_bits(by_threads, whole));
}

TEST_CASE("Threads make the bits that one makes, of slabs of one row or column as well",
          "[kernels][gemm][threads]") {
  if (!kTeamExecution || sgemm_library() != SgemmLibrary::tiles) return;
  struct Shape {
    int rows, columns, terms;
  };
  // With three threads slabs of 16, 16 and 1 columns, and of as many rows.
  for (const Shape s : {Shape{33, 33, 8000}, {33, 17, 16000}}) {
    const auto a = random_values<float>(s.rows * s.terms, 3);
    const auto b = random_values<float>(s.columns * s.terms, 4);
    std::vector<float> expected(s.rows * s.columns);
    tiles::sgemm(Transpose::no, Transpose::no, s.rows, s.columns, s.terms, 1, a.data(), s.terms,
                 b.data(), s.columns, 0, expected.data(), s.columns);
    const Matrix<float> c("deltapipe::Test::c", s.rows, s.columns);
    gemm(ExecSpace(), Transpose::no, Transpose::no, 1.0f, to_device(a, s.terms),
         to_device(b, s.columns), 0.0f, c);
    CHECK(to_host(c) == expected);
  }
}
