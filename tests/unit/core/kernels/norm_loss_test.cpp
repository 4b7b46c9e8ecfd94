// SPDX-License-Identifier: BSD-3-Clause
// Layer norm and cross entropy: formulas in double, finite differences, extreme values.
#include <catch2/catch.hpp>
#include <limits>

#include "core/kernels/layers/cross_entropy.hpp"
#include "core/kernels/layers/layer_norm.hpp"
#include "support/device_values.hpp"
#include "support/finite_differences.hpp"

using namespace deltapipe;
using deltapipe::test::dot;
using deltapipe::test::random_values;
using deltapipe::test::relative_difference;
using deltapipe::test::slope_error;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

namespace {

template <class Real>
struct Norm {
  std::vector<Real> y, mean, rstd;
};

template <class Real>
Norm<Real> norm_of(const std::vector<Real>& x, const std::vector<Real>& weight,
                   const std::vector<Real>& bias, double epsilon) {
  const int C = static_cast<int>(weight.size()), N = static_cast<int>(x.size()) / C;
  const Matrix<Real> y("test::y", N, C);
  const Vector<Real> mean("test::mean", N), rstd("test::rstd", N);
  layer_norm_forward<Real>(ExecSpace(), to_device(x, C), to_device(weight), to_device(bias),
                           Real(epsilon), MatrixRef<Real>(y), mean, rstd);
  return {to_host(y), to_host(mean), to_host(rstd)};
}

std::vector<double> norm_formula(const std::vector<double>& x, const std::vector<double>& weight,
                                 const std::vector<double>& bias, double epsilon) {
  const std::size_t C = weight.size();
  std::vector<double> y(x.size());
  for (std::size_t first = 0; first < x.size(); first += C) {
    double mean = 0, variance = 0;
    for (std::size_t c = 0; c < C; ++c) mean += x[first + c] / C;
    for (std::size_t c = 0; c < C; ++c) variance += std::pow(x[first + c] - mean, 2) / C;
    for (std::size_t c = 0; c < C; ++c)
      y[first + c] = (x[first + c] - mean) / std::sqrt(variance + epsilon) * weight[c] + bias[c];
  }
  return y;
}

template <class To, class From>
std::vector<To> as(const std::vector<From>& values) {
  return std::vector<To>(values.begin(), values.end());
}

struct Entropy {
  std::vector<double> losses, gradient;
};

template <class Real>
Entropy entropy_of(const std::vector<Real>& logits, const std::vector<std::int32_t>& targets,
                   double scale, bool gradient = true) {
  const int N = static_cast<int>(targets.size()), V = static_cast<int>(logits.size()) / N;
  const Matrix<Real> z = to_device(logits, V);
  const Vector<Real> loss = to_device(std::vector<Real>(N, Real(-7)));
  cross_entropy<Real>(ExecSpace(), to_device(targets), Real(scale), gradient, z, MatrixRef<Real>(z),
                      loss);
  return {as<double>(to_host(loss)), as<double>(to_host(z))};
}

}  // namespace

TEST_CASE("A target that is no class has a loss of NaN and touches no other row",
          "[kernels][loss]") {
  const auto logits = random_values(3 * 5, 4);
  const Entropy valid = entropy_of<double>(logits, {1, -1, 4}, 1);
  for (const int target : {5, 6, 1 << 30}) {
    const Entropy made = entropy_of<double>(logits, {1, target, 4}, 1);
    CAPTURE(target);
    CHECK(std::isnan(made.losses[1]));
    CHECK(made.losses[0] == valid.losses[0]);
    CHECK(made.losses[2] == valid.losses[2]);
    CHECK(made.gradient == valid.gradient);
  }
}

TEST_CASE("Layer norm is its formula", "[kernels][norm]") {
  const double epsilon = 1e-5;
  for (const int C : {1, 2, 15, 16, 17, 100, 769}) {
    INFO(C << " channels");
    const auto x = random_values(5 * C, C, 3), weight = random_values(C, 2),
               bias = random_values(C, 3);
    const auto truth = norm_formula(x, weight, bias, epsilon);
    CHECK(relative_difference(norm_of(x, weight, bias, epsilon).y, truth) < 1e-13);
    CHECK(relative_difference(norm_of(as<float>(x), as<float>(weight), as<float>(bias), epsilon).y,
                              truth) < 1e-5);
  }
}

TEST_CASE("Layer norm of constant, zero, offset, huge and NaN rows", "[kernels][norm]") {
  const int C = 33;
  const std::vector<float> weight(C, 2), bias(C, 0.5f);
  for (const float value : {0.0f, 1.0f, -1e4f})
    for (const float y : norm_of(std::vector<float>(C, value), weight, bias, 1e-5).y)
      CHECK(y == Approx(0.5).margin(1e-3));
  // A large mean costs no digits of the variance beyond those of x itself.
  auto x = random_values<float>(C, 1);
  for (float& value : x) value += 1000;
  CHECK(relative_difference(
            norm_of(x, weight, bias, 1e-5).y,
            norm_formula(as<double>(x), as<double>(weight), as<double>(bias), 1e-5)) < 1e-4);
  for (const float y : norm_of(random_values<float>(C, 1, 1e18), weight, bias, 1e-5).y)
    CHECK((std::isfinite(y) && std::abs(y) < 10));
  x[7] = NAN;
  for (const float y : norm_of(x, weight, bias, 1e-5).y) CHECK(std::isnan(y));
}

TEST_CASE("Layer norm's gradients are its slopes", "[kernels][norm]") {
  const ExecSpace exec;
  const double epsilon = 1e-3;
  for (const int C : {1, 5, 16, 70}) {
    INFO(C << " channels");
    const int N = 3;
    const auto x = random_values(N * C, 1, 2), weight = random_values(C, 2),
               bias = random_values(C, 3);
    const auto dy = random_values(N * C, 4), before = random_values(N * C, 5);
    const Norm<double> norm = norm_of(x, weight, bias, epsilon);
    const Matrix<double> dx = to_device(before, C), y("test::y", N, C);
    const Vector<double> mean = to_device(norm.mean), rstd = to_device(norm.rstd);
    layer_norm_backward<double>(exec, to_device(dy, C), to_device(x, C), to_device(weight),
                                to_device(bias), mean, rstd, dx, MatrixRef<double>(y));
    CHECK(relative_difference(to_host(y), norm.y) < 1e-14);
    auto gradient = to_host(dx);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] -= before[i];
    const auto loss = [&](const auto& x_, const auto& gain_, const auto& bias_) {
      return dot(dy, norm_of(x_, gain_, bias_, epsilon).y);
    };
    CHECK(slope_error([&](const auto& v) { return loss(v, weight, bias); }, x, gradient) < 1e-7);

    const auto start = random_values(C, 6);
    const Vector<double> dgain = to_device(start), dbias = to_device(start);
    for (const bool accumulate : {false, true}) {
      layer_norm_parameter_gradient<double>(exec, to_device(dy, C), to_device(x, C), mean, rstd,
                                            accumulate, dgain, dbias);
      auto gain_slope = to_host(dgain), bias_slope = to_host(dbias);
      if (accumulate)  // the second call doubles
        for (int c = 0; c < C; ++c) gain_slope[c] /= 2, bias_slope[c] /= 2;
      CHECK(slope_error([&](const auto& v) { return loss(x, v, bias); }, weight, gain_slope) <
            1e-7);
      CHECK(slope_error([&](const auto& v) { return loss(x, weight, v); }, bias, bias_slope) <
            1e-7);
    }
  }
}

TEST_CASE("Cross entropy and its gradient", "[kernels][loss]") {
  for (const int V : {1, 2, 16, 37, 1000}) {
    INFO(V << " logits");
    const int N = 4;
    const auto logits = random_values(N * V, V, 5);
    const std::vector<std::int32_t> targets = {0, V - 1, -1, V / 2};
    const double scale = 0.3;
    const Entropy made = entropy_of(logits, targets, scale);
    double total = 0;
    for (int n = 0; n < N; ++n) {
      double sum = 0;
      for (int v = 0; v < V; ++v) sum += std::exp(logits[n * V + v]);
      const double truth = targets[n] < 0 ? 0 : std::log(sum) - logits[n * V + targets[n]];
      CHECK(made.losses[n] == Approx(truth).margin(1e-13));
      total += truth;
    }
    CHECK(entropy_of(logits, targets, scale, false).losses == made.losses);
    if (V <= 37) {
      const auto loss = [&](const std::vector<double>& z) {
        const Entropy at = entropy_of(z, targets, scale);
        return scale * (at.losses[0] + at.losses[1] + at.losses[2] + at.losses[3]);
      };
      CHECK(slope_error(loss, logits, made.gradient) < 1e-8);
    }
    const Entropy single = entropy_of(as<float>(logits), targets, scale);
    CHECK(relative_difference(single.losses, made.losses, 1) < 1e-6);
    CHECK(relative_difference(single.gradient, made.gradient, 0.1) < 1e-5);
    for (int v = 0; v < V; ++v) CHECK(single.gradient[2 * V + v] == 0);  // padding
  }
}

TEST_CASE("Cross entropy of extreme logits neither overflows nor hangs", "[kernels][loss]") {
  std::vector<float> logits(40, 0.0f);
  logits[3] = 1e4f, logits[4] = -1e4f;
  const Entropy right = entropy_of(logits, {3}, 1), wrong = entropy_of(logits, {4}, 1);
  CHECK(right.losses[0] == Approx(0).margin(1e-6));
  CHECK(wrong.losses[0] == Approx(2e4));
  CHECK(wrong.gradient[3] == Approx(1));
  CHECK(wrong.gradient[4] == Approx(-1));
  CHECK(wrong.gradient[5] == Approx(0).margin(1e-30));
  for (const float value : {1e4f, -1e4f, 1e30f}) {
    const Entropy equal = entropy_of(std::vector<float>(40, value), {7}, 1);
    CHECK(equal.losses[0] == Approx(std::log(40.0)).margin(std::abs(value) * 1.2e-7));
    CHECK(equal.gradient[0] == Approx(1 / 40.0));
  }
  // A NaN anywhere makes a NaN: the run must notice.
  for (const int place : {0, 5, 16, 39}) {
    auto bad = logits;
    bad[place] = NAN;
    CHECK(std::isnan(entropy_of(bad, {7}, 1).losses[0]));
  }
  logits[9] = INFINITY;
  CHECK(!std::isfinite(entropy_of(logits, {7}, 1).losses[0]));
}

TEST_CASE("Greedy decoding misses targets that are not the first of the likeliest",
          "[kernels][loss]") {
  for (const int V : {1, 2, 16, 17, 300}) {
    INFO(V << " tokens");
    std::vector<float> logits = random_values<float>(6 * V, 1, 5);
    const auto row = [&](int n) { return logits.begin() + n * V; };
    std::vector<std::int32_t> targets(6);
    for (int n = 0; n < 6; ++n)
      targets[n] = static_cast<std::int32_t>(std::max_element(row(n), row(n) + V) - row(n));
    std::vector<float> misses(6, 0);
    if (V > 1) targets[1] = (targets[1] + 1) % V, misses[1] = 1;
    targets[2] = -1;
    if (V > 1) {  // equal ones: the first is drawn
      std::fill(row(3), row(3) + V, -2.0f);
      targets[3] = 0;
      std::fill(row(4), row(4) + V, -2.0f);
      targets[4] = V - 1, misses[4] = 1;
    }
    const Vector<float> missed = to_device(std::vector<float>(6, -7));
    greedy_misses<float>(ExecSpace(), to_device(targets), MatrixRef<float>(to_device(logits, V)),
                         missed);
    CHECK(to_host(missed) == misses);
    for (const float bad : {NAN, INFINITY, -INFINITY})
      for (const int place : {0, V / 2, V - 1}) {
        std::vector<float> broken(row(0), row(0) + V);
        broken[place] = bad;
        const Vector<float> score = to_device(std::vector<float>(1, -7));
        greedy_misses<float>(ExecSpace(), to_device(std::vector<std::int32_t>{targets[0]}),
                             MatrixRef<float>(to_device(broken, V)), score);
        CHECK(std::isnan(to_host(score)[0]));
      }
  }
}
