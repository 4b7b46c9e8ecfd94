// SPDX-License-Identifier: BSD-3-Clause
// exp, sums of squares and AdamW against the same formulas in double.
#include "core/kernels/layers/math.hpp"

#include <catch2/catch.hpp>
#include <limits>

#include "core/kernels/optimizers/adamw.hpp"
#include "core/kernels/reduce.hpp"
#include "support/device_values.hpp"
#include "support/finite_differences.hpp"

using namespace deltapipe;
using deltapipe::test::random_values;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

namespace {

/// vector_exp in a loop that is vectorised where kernels are.
template <class Real>
std::vector<Real> exp_of(const std::vector<Real>& x) {
  const Vector<Real> in = to_device(x), out = to_device(x);
  Kokkos::parallel_for(
      "test::exp", Kokkos::RangePolicy<ExecSpace>(0, x.size()),
      DELTAPIPE_LAMBDA(int i) { out(i) = vector_exp(in(i)); });
  return to_host(out);
}

double ulp(float value) {
  return static_cast<double>(std::nextafter(value, INFINITY)) - static_cast<double>(value);
}

}  // namespace

TEST_CASE("vector_exp is within 1.1 ulp over its range", "[kernels][exp]") {
  std::vector<float> x;
  for (double v = -87; v <= 88; v += 175.0 / 400000) x.push_back(static_cast<float>(v));
  for (float v : {0.0f, -0.0f, 1e-45f, -1e-45f, 1e-38f, 1e-7f, -1e-7f, 0.34657359f, -0.34657359f,
                  0.34657362f, 87.9999f, -86.9999f, 88.0f, -87.0f})
    x.push_back(v);
  for (float v = 1e-30f; v < 1; v *= 1.7f) x.insert(x.end(), {v, -v});
  const std::vector<float> e = exp_of(x);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double truth = std::exp(static_cast<double>(x[i]));
    const double error = std::abs(e[i] - truth) / ulp(static_cast<float>(truth));
    if (!(error <= worst)) worst = error;
  }
  INFO("worst error " << worst << " ulp");
  CHECK(worst < 1.1);
  CHECK(exp_of<float>({0.0f})[0] == 1.0f);
}

TEST_CASE("vector_exp outside its range: 0, infinity, NaN for NaN", "[kernels][exp]") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  // Sixteen at once and one alone: the vectorised and the scalar code.
  for (const int count : {1, 16, 19}) {
    const auto of = [&](float x) { return exp_of(std::vector<float>(count, x)); };
    for (const float e : of(kNaN)) CHECK(std::isnan(e));
    for (const float e : of(-kNaN)) CHECK(std::isnan(e));
    for (const float x : {88.1f, 1e10f, 3.4e38f, kInf})
      for (const float e : of(x)) CHECK(e == kInf);
    for (const float x : {-87.1f, -1e4f, -1e10f, -3.4e38f, -kInf})
      for (const float e : of(x)) CHECK(e == 0);
  }
  CHECK(std::isnan(exp_of<double>({NAN})[0]));
  CHECK(logistic(0.0f) == 0.5f);
  CHECK(logistic(1e30f) == 1.0f);
  CHECK(logistic(-1e30f) == 0.0f);
  CHECK(std::isnan(logistic(kNaN)));
}

TEST_CASE("The normal distribution is erfc", "[kernels][exp]") {
  double worst = 0, worst_tail = 0;
  for (double v = -12.5; v <= 9; v += 1.0 / 4096) {
    const auto x = static_cast<float>(v);
    const double truth = 0.5 * std::erfc(-static_cast<double>(x) * std::sqrt(0.5));
    const double error = std::abs(normal_distribution(x) / truth - 1);
    double& largest = x > -7 ? worst : worst_tail;
    if (!(error <= largest)) largest = error;
  }
  CHECK(worst < 1.5e-6);
  CHECK(worst_tail < 6e-6);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  CHECK(normal_distribution(0.0f) == Approx(0.5).epsilon(1e-7));
  for (const float x : {20.0f, 1e30f, kInf}) {
    CHECK(normal_distribution(x) == 1);
    CHECK(normal_distribution(-x) == 0);
  }
  CHECK(std::isnan(normal_distribution(NAN)));
  CHECK(normal_distribution(-2.0) == Approx(0.5 * std::erfc(2.0 * std::sqrt(0.5))));
}

TEMPLATE_TEST_CASE("Sums of squares are those of double", "[kernels][reduce]", float, double) {
  for (const std::size_t count : {0, 1, 15, 16, 17, 4095, 4096, 4097, 20000}) {
    const auto x = random_values<TestType>(count, count, 100);
    double truth = 0;
    for (const TestType value : x) truth += static_cast<double>(value) * value;
    const Vector<double> partial("test::partial", sum_of_squares_workspace(count));
    partial_sums_of_squares<TestType>(ExecSpace(), to_device(x), partial);
    const Vector<double> by_teams("test::partial", sum_of_squares_workspace(count));
    team_sums_of_squares<TestType>(ExecSpace(), to_device(x), by_teams);
    for (const Vector<double>& made : {partial, by_teams}) {
      double sum = 0;
      for (const double value : to_host(made)) sum += value;
      CHECK(sum == Approx(truth).epsilon(1e-13));
    }
  }
  const auto sum_of = [](const std::vector<TestType>& x) {
    const Vector<double> partial("test::partial", 1);
    partial_sums_of_squares<TestType>(ExecSpace(), to_device(x), partial);
    return to_host(partial)[0];
  };
  CHECK(sum_of({TestType(1e30), TestType(1)}) == Approx(1e60));  // no overflow of fp32
  CHECK(std::isnan(sum_of({TestType(1), TestType(NAN), TestType(2)})));
  CHECK(std::isinf(sum_of({TestType(1), TestType(INFINITY)})));
}

TEMPLATE_TEST_CASE("AdamW is the paper's formula", "[kernels][adamw]", float, double) {
  const std::size_t count = GENERATE(0, 1, 37, 4096, 5001);
  const double beta1 = 0.9, beta2 = 0.98, epsilon = 1e-6, decay = 0.1, rate = 3e-3, factor = 0.25;
  auto p = random_values(count, 1), m = random_values(count, 2, 0.0), v = m;
  const Vector<TestType> p_in = to_device(random_values<TestType>(count, 1));
  const Vector<TestType> m_in("test::moment1", count), v_in("test::moment2", count);
  for (int step = 1; step <= 5; ++step) {
    const auto gradient = random_values<TestType>(count, 10 + step, 2);
    adamw_pass<TestType>(ExecSpace(),
                         AdamWStep::at(step, rate, beta1, beta2, epsilon, decay, factor),
                         to_device(gradient), MutableValues<TestType>{p_in.data()}, m_in, v_in);
    for (std::size_t i = 0; i < count; ++i) {
      const double g = factor * gradient[i];
      p[i] -= rate * decay * p[i];
      m[i] = beta1 * m[i] + (1 - beta1) * g;
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(beta1, step));
      const double v_hat = v[i] / (1 - std::pow(beta2, step));
      p[i] -= rate * m_hat / (std::sqrt(v_hat) + epsilon);
    }
  }
  const double tolerance = std::is_same_v<TestType, float> ? 1e-6 : 1e-13;
  CHECK(test::relative_difference(to_host(p_in), p) < tolerance);
  CHECK(test::relative_difference(to_host(m_in), m) < tolerance);
  CHECK(test::relative_difference(to_host(v_in), v) < tolerance);
}

TEST_CASE("First moments of replicas add up to that of the summed gradient", "[kernels][adamw]") {
  const std::size_t count = GENERATE(0, 1, 4097);
  const int replicas = 3;
  const double factor = 0.25;
  const auto p = random_values<float>(count, 1), m = random_values<float>(count, 2);
  auto v = random_values<float>(count, 3);
  for (std::size_t i = 0; i < count; ++i) v[i] = i % 7 == 0 ? 0 : v[i] * v[i];
  AdamWStep step = AdamWStep::at(20, 3e-3, 0.9, 0.98, 1e-6, 0.1, factor);
  std::vector<double> sum(count), shares(count);
  for (int r = 0; r < replicas; ++r) {
    const auto gradient = random_values<float>(count, 10 + r);
    const Vector<float> share = to_device(m);
    adamw_moment_share<float>(ExecSpace(), step, replicas, to_device(gradient), share);
    const auto host = to_host(share);
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] += 0.1 * factor * gradient[i];
      shares[i] += host[i];
    }
  }
  for (std::size_t i = 0; i < count; ++i) sum[i] += 0.9 * m[i];
  CHECK(test::relative_difference(shares, sum) < 1e-6);
  step.correction2 = 1 - std::pow(0.98, 5);
  const Vector<float> parameter = to_device(p);
  adamw_moment_pass<float>(ExecSpace(), step, MutableValues<float>{parameter.data()}, to_device(m),
                           to_device(v));
  std::vector<double> expected(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double m_hat = m[i] / (1 - std::pow(0.9, 20));
    const double v_hat = v[i] / (1 - std::pow(0.98, 5));
    expected[i] = p[i] * (1 - 3e-4);
    if (v[i] > 0) expected[i] -= 3e-3 * m_hat / (std::sqrt(v_hat) + 1e-6);
  }
  CHECK(test::relative_difference(to_host(parameter), expected) < 1e-6);
}

TEST_CASE("AdamW: a zero gradient moves nothing but decay, NaN shows", "[kernels][adamw]") {
  const auto update = [](float gradient, double decay) {
    const Vector<float> p = to_device(std::vector<float>{2}), m = to_device(std::vector<float>{0}),
                        v = to_device(std::vector<float>{0});
    adamw_pass<float>(ExecSpace(), AdamWStep::at(1, 0.1, 0.9, 0.999, 1e-8, decay, 1),
                      to_device(std::vector<float>{gradient}), MutableValues<float>{p.data()}, m,
                      v);
    return to_host(p)[0];
  };
  CHECK(update(0, 0) == 2);
  CHECK(update(0, 0.5) == Approx(2 * (1 - 0.05)));
  CHECK(update(1e-30f, 0) == Approx(2).epsilon(1e-6));
  CHECK(update(1e15f, 0) == Approx(1.9).epsilon(1e-6));  // the first step's size is the rate
  CHECK(std::isnan(update(NAN, 0)));
}
