// SPDX-License-Identifier: BSD-3-Clause
// Products in bf16 against sums in double of the rounded operands, and who rounds what when.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/kernels/gemm/products.hpp"
#include "core/kernels/layers/cross_entropy.hpp"
#include "core/kernels/layers/layer_norm.hpp"
#include "core/kernels/layers/linear.hpp"
#include "support/device_values.hpp"
#include "support/finite_differences.hpp"

using namespace deltapipe;
using deltapipe::test::random_values;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

namespace {

std::vector<Bf16> rounded(const std::vector<float>& values) {
  std::vector<Bf16> made(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) made[i] = bfloat_of(values[i]);
  return made;
}

/// By emulation and, where there is another, as this machine does it.
std::vector<Bf16Gemm> all_gemms() {
  std::vector<Bf16Gemm> gemms = {Bf16Gemm({}, true)};
  if (has_fast_bf16_gemm()) gemms.emplace_back(ViewAllocator());
  return gemms;
}

struct Shape {
  int m, n, k;
};

struct Operands {
  Transpose op_a, op_b;
  Shape shape;
  std::vector<Bf16> a, b;

  float a_at(int i, int l) const {
    return float_of_bfloat(
        a[op_a == Transpose::no ? std::size_t(i) * shape.k + l : std::size_t(l) * shape.m + i]);
  }
  float b_at(int l, int j) const {
    return float_of_bfloat(
        b[op_b == Transpose::no ? std::size_t(l) * shape.n + j : std::size_t(j) * shape.k + l]);
  }
  std::vector<float> product(const Bf16Gemm& gemm, float beta, float before) const {
    const Matrix<float> c =
        to_device(std::vector<float>(std::size_t(shape.m) * shape.n, before), shape.n);
    gemm(ExecSpace(), op_a, op_b, to_device(a, op_a == Transpose::no ? shape.k : shape.m),
         to_device(b, op_b == Transpose::no ? shape.n : shape.k), beta, c);
    return to_host(c);
  }
};

}  // namespace

TEST_CASE("Products in bf16 are the sums of exact products", "[kernels][gemm][bf16]") {
  const auto op_a = GENERATE(Transpose::no, Transpose::yes);
  const auto op_b = GENERATE(Transpose::no, Transpose::yes);
  for (const Shape s : {Shape{1, 1, 1},
                        {3, 5, 7},
                        {1, 19, 4},
                        {17, 1, 3},
                        {16, 33, 64},
                        {65, 130, 257},
                        {65, 21, 63},  // SIGILL and wrong sums with AMX in oneDNN 2.6
                        {39, 32, 63},
                        {128, 96, 320},
                        {40, 100, 1500}}) {
    const Operands operands{op_a, op_b, s, rounded(random_values<float>(s.m * s.k, 1)),
                            rounded(random_values<float>(s.k * s.n, 2))};
    for (const Bf16Gemm& gemm : all_gemms()) {
      for (const float beta : {0.0f, 1.0f}) {
        INFO(s.m << " x " << s.n << " x " << s.k << ", beta " << beta);
        const float before = beta == 0 ? NAN : 2.0f;  // beta = 0 overwrites NaN
        const std::vector<float> made = operands.product(gemm, beta, before);
        double worst = 0;
        for (int i = 0; i < s.m; ++i)
          for (int j = 0; j < s.n; ++j) {
            double sum = beta == 0 ? 0 : 2, magnitude = sum;
            for (int l = 0; l < s.k; ++l) {
              const double term = double(operands.a_at(i, l)) * operands.b_at(l, j);
              sum += term;
              magnitude += std::abs(term);
            }
            const double error = std::abs(made[std::size_t(i) * s.n + j] - sum) / magnitude;
            if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
          }
        CHECK(worst < (s.k + 2) * std::ldexp(1.0, -23));  // each addition rounds once
      }
    }
  }
}

TEST_CASE("Products in bf16 leave what lies between rows alone", "[kernels][gemm][bf16]") {
  const Shape s{6, 9, 5};
  const auto op_a = GENERATE(Transpose::no, Transpose::yes);
  const auto op_b = GENERATE(Transpose::no, Transpose::yes);
  const Operands operands{op_a, op_b, s, rounded(random_values<float>(s.m * s.k, 1)),
                          rounded(random_values<float>(s.k * s.n, 2))};
  constexpr int kGap = 3, kCount = 2;
  // The matrix kCount times, in rows kGap further apart, with `between` there.
  const auto apart = [](const auto& values, int width, auto between) {
    const int rows = static_cast<int>(values.size()) / width;
    std::decay_t<decltype(values)> made(std::size_t(kCount) * rows * (width + kGap), between);
    for (int i = 0; i < kCount * rows; ++i)
      std::copy_n(values.begin() + std::ptrdiff_t(i % rows) * width, width,
                  made.begin() + std::ptrdiff_t(i) * (width + kGap));
    return made;
  };
  const int width_a = op_a == Transpose::no ? s.k : s.m,
            width_b = op_b == Transpose::no ? s.n : s.k;
  const Bf16 nan = bfloat_of(NAN);
  const Matrix<Bf16> a = to_device(apart(operands.a, width_a, nan), width_a + kGap);
  const Matrix<Bf16> b = to_device(apart(operands.b, width_b, nan), width_b + kGap);
  const auto first = [](const auto& all, int width) {
    const int rows = all.extent_int(0) / kCount;
    return strided_matrix(all.data(), rows, width, all.extent(1));
  };
  for (const Bf16Gemm& gemm : all_gemms()) {
    for (const float beta : {0.0f, 1.0f}) {
      const std::vector<float> before(std::size_t(s.m) * s.n, 2.0f);
      const Matrix<float> c = to_device(apart(before, s.n, -7.0f), s.n + kGap);
      const MatrixRef<const Bf16> first_a = first(a, width_a), first_b = first(b, width_b);
      const MatrixGrid<const Bf16> all_a{first_a, 0, a.size() / kCount};
      const MatrixGrid<const Bf16> all_b{first_b, 0, b.size() / kCount};
      const MatrixGrid<float> all_c{first(c, s.n), 0, c.size() / kCount};
      gemm.batched(ExecSpace(), op_a, op_b, all_a, all_b, beta, all_c, 1, kCount);
      CHECK(to_host(c) == apart(operands.product(gemm, beta, 2.0f), s.n, -7.0f));
    }
  }
}

TEST_CASE("Emulated products in bf16 of more than a piece", "[kernels][gemm][bf16]") {
  // Ones and powers of two: sums are exact in any order.
  const Shape s = GENERATE(Shape{3, 70000, 150}, Shape{70000, 2, 150}, Shape{40, 50, 60000});
  const auto op_a = GENERATE(Transpose::no, Transpose::yes);
  const auto op_b = GENERATE(Transpose::no, Transpose::yes);
  Operands operands{op_a, op_b, s, rounded(std::vector<float>(std::size_t(s.m) * s.k, 1)),
                    rounded(std::vector<float>(std::size_t(s.k) * s.n, 0.5f))};
  const auto a_index = [&](int i, int l) {
    return op_a == Transpose::no ? std::size_t(i) * s.k + l : std::size_t(l) * s.m + i;
  };
  const auto b_index = [&](int l, int j) {
    return op_b == Transpose::no ? std::size_t(l) * s.n + j : std::size_t(j) * s.k + l;
  };
  operands.a[a_index(s.m - 1, s.k - 1)] = bfloat_of(5);
  operands.b[b_index(s.k - 1, s.n - 1)] = bfloat_of(4);
  for (const float beta : {0.0f, 1.0f}) {
    const std::vector<float> made = operands.product(Bf16Gemm({}, true), beta, 8);
    const float base = 0.5f * static_cast<float>(s.k) + 8 * beta;
    const auto at = [&](int i, int j) { return made[std::size_t(i) * s.n + j]; };
    CHECK(at(0, 0) == base);
    CHECK(at(s.m - 1, 0) == base + 2);
    CHECK(at(0, s.n - 1) == base + 3.5f);
    CHECK(at(s.m - 1, s.n - 1) == base + 19.5f);
    CHECK(at((s.m - 1) / 2, (s.n - 1) / 2) == base);
  }
}

TEST_CASE("Products in bf16 show NaN and infinities", "[kernels][gemm][bf16]") {
  const Shape s{4, 5, 33};
  Operands operands{Transpose::no, Transpose::no, s, rounded(std::vector<float>(s.m * s.k, 1)),
                    rounded(std::vector<float>(s.k * s.n, 1))};
  operands.a[0] = bfloat_of(NAN);
  operands.a[std::size_t(1) * s.k + 7] = bfloat_of(INFINITY);
  operands.a[std::size_t(2) * s.k + 8] = bfloat_of(3e38f);
  operands.b[std::size_t(8) * s.n] = bfloat_of(-3e38f);
  for (const Bf16Gemm& gemm : all_gemms()) {
    const std::vector<float> made = operands.product(gemm, 0, 0);
    CHECK(std::isnan(made[1]));
    CHECK(made[s.n + 1] == INFINITY);
    CHECK(made[2 * s.n + 1] == float_of_bfloat(bfloat_of(3e38f)));
    CHECK(made[2 * s.n] == -INFINITY);
    CHECK(made[3 * s.n + 1] == static_cast<float>(s.k));
  }
}

TEST_CASE("Operands are rounded where products are of bf16, and only there", "[kernels][bf16]") {
  const int N = 3, C = 5;
  const auto x = random_values<float>(N * C, 4);
  const Matrix<float> values = to_device(x, C);
  CHECK(Products<float>().input(ExecSpace(), values).rounded.size() == 0);
  const Products<float> products(ViewAllocator(), N * C, N * C);
  const Operand<float> input = products.input(ExecSpace(), values);
  CHECK(to_host(input.rounded) == rounded(x));
  const Operand<float> gradient = products.gradient(ExecSpace(), values);
  CHECK(gradient.rounded.data() != input.rounded.data());
  const Products<double> plain(ViewAllocator(), N * C, N * C);
  CHECK(plain.input(ExecSpace(), to_device(random_values<double>(N * C, 4), C)).rounded.size() ==
        0);
}

namespace {

/// write(y) gives the same for y as float and as bf16 but for rounding.
template <class Write>
void check_rounded(int rows, int columns, const Write& write) {
  const Matrix<float> plain("test::plain", rows, columns);
  const Matrix<Bf16> rounded_too("test::rounded", rows, columns);
  write(MatrixRef<float>(plain));
  write(MatrixRef<Bf16>(rounded_too));
  CHECK(to_host(rounded_too) == rounded(to_host(plain)));
}

}  // namespace

TEST_CASE("Kernels round what they write as rounding it later does", "[kernels][bf16]") {
  const ExecSpace exec;
  for (const int C : {1, 7, 64, 769}) {
    INFO(C << " columns");
    constexpr int N = 3;
    auto values = random_values<float>(N * C, 1, 4);
    const auto slopes = random_values<float>(N * C, 2);
    if (C > 1) values[1] = 1e30f;  // far out, and beyond what a float's square holds
    const Matrix<float> x = to_device(values, C);
    const Vector<float> weight = to_device(random_values<float>(C, 3));
    const Vector<float> bias = to_device(random_values<float>(C, 4));
    const Vector<float> mean("test::mean", N), rstd("test::rstd", N);
    const auto norm = [&](const auto& y) {
      layer_norm_forward<float>(exec, x, weight, bias, 1e-5f, y, mean, rstd);
    };
    check_rounded(N, C, norm);
    check_rounded(N, C, [&](const auto& y) {
      const Matrix<float> dx("test::dx", N, C);
      layer_norm_backward<float>(exec, to_device(slopes, C), x, weight, bias, mean, rstd, dx, y);
    });
    check_rounded(
        N, C, [&](const auto& y) { activation_forward<float>(exec, Activation::gelu_tanh, x, y); });
    check_rounded(N, C, [&](const auto& y) {
      const Matrix<float> dh = to_device(slopes, C);
      activation_backward<float>(exec, Activation::gelu_tanh, x, dh, y);
    });
    check_rounded(N, C, [&](const auto& dlogits) {
      const Matrix<float> logits = to_device(slopes, C);
      const Vector<float> loss("test::loss", N);
      cross_entropy<float>(exec, to_device(std::vector<std::int32_t>{0, -1, C - 1}), 0.25f, true,
                           logits, dlogits, loss);
    });
  }
}

namespace {

template <class Output>
void copy_rounded(const Matrix<float>& x, const Output& y) {
  using Value = typename Output::value_type;
  const int columns = static_cast<int>(x.extent(1));
  Kokkos::parallel_for(
      "deltapipe::Test::copy", static_cast<int>(x.size()), DELTAPIPE_LAMBDA(int i) {
        y(i / columns, i % columns) = rounded_to<Value>(x(i / columns, i % columns));
      });
}

}  // namespace

TEST_CASE("Products take what is written rounded as what they round", "[kernels][bf16]") {
  const ExecSpace exec;
  const int N = 5, I = 37, O = 6;
  const Matrix<float> x = to_device(random_values<float>(N * I, 1), I);
  const Matrix<float> weight = to_device(random_values<float>(I * O, 2), O);
  const Matrix<Bf16> weight_rounded = to_device(rounded(to_host(weight)), O);
  const auto copy = [&](const auto& y) { copy_rounded(x, y); };
  for (const bool in_bf16 : {false, true}) {
    const Products<float> products =
        in_bf16 ? Products<float>(ViewAllocator(), N * I, N * I) : Products<float>();
    const MatrixRef<const Bf16> rounded_too = weight_rounded;
    const Operand<float> w = in_bf16 ? Operand<float>{weight, rounded_too} : Operand<float>(weight);
    const Matrix<float> workspace("test::workspace", N, I);
    const auto product = [&](const Operand<float>& input, int first, int count) {
      const Matrix<float> y("test::y", count, O);
      products(exec, Transpose::no, Transpose::no, input.rows(first, count), w, 0.0f, y);
      return to_host(y);
    };
    const auto late = product(products.input(exec, x), 1, 3);
    CHECK(product(products.make_input(workspace, copy), 1, 3) == late);
    CHECK(product(products.make_gradient(workspace, copy), 1, 3) == late);
  }
}
