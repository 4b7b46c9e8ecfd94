// SPDX-License-Identifier: BSD-3-Clause
// Products, bias, GELU, dropout, residual and embeddings: formulas and finite differences.
#include "core/kernels/layers/linear.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "core/kernels/layers/embedding.hpp"
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

double gelu_formula(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

template <class Real>
std::vector<Real> gelu_of(const std::vector<Real>& h, int F) {
  const Matrix<Real> y = to_device(std::vector<Real>(h.size(), Real(NAN)), F);
  activation_forward<Real>(ExecSpace(), Activation::gelu_tanh, to_device(h, F), MatrixRef<Real>(y));
  return to_host(y);
}

Dropout dropout_of(double probability, const Vector<std::uint64_t>& ids, int tokens,
                   std::uint32_t site = 1, std::uint64_t step = 0) {
  Dropout d;
  d.probability = static_cast<float>(probability);
  d.stream = RandomStream(42, step, site);
  d.sample_id_B = ids;
  d.tokens = tokens;
  return d;
}

/// The factors of every element, as the kernel applies them.
template <class Real = double>
std::vector<Real> mask_of(const std::vector<std::uint64_t>& ids, int tokens, int channels,
                          double probability, std::uint32_t site = 1, std::uint64_t step = 0) {
  const Vector<std::uint64_t> on_device = to_device(ids);
  const Matrix<Real> x =
      to_device(std::vector<Real>(ids.size() * tokens * channels, Real(1)), channels);
  apply_dropout<Real>(ExecSpace(), dropout_of(probability, on_device, tokens, site, step), x, x);
  return to_host(x);
}

}  // namespace

TEMPLATE_TEST_CASE("Products with parts of wider matrices", "[kernels][gemm]", float, double) {
  const auto op_a = GENERATE(Transpose::no, Transpose::yes);
  const auto op_b = GENERATE(Transpose::no, Transpose::yes);
  const double tolerance = std::is_same_v<TestType, float> ? 3e-5 : 1e-13;
  struct Shape {
    int m, n, k;
  };
  for (const Shape s :
       {Shape{1, 1, 1}, {3, 5, 7}, {1, 19, 4}, {17, 1, 3}, {16, 33, 64}, {130, 259, 300}}) {
    const int pad = 3;
    const int a_rows = op_a == Transpose::no ? s.m : s.k, a_columns = s.m + s.k - a_rows;
    const int b_rows = op_b == Transpose::no ? s.k : s.n, b_columns = s.k + s.n - b_rows;
    const auto a = random_values<TestType>(a_rows * (a_columns + pad), 1);
    const auto b = random_values<TestType>(b_rows * (b_columns + pad), 2);
    const Matrix<TestType> a_in = to_device(a, a_columns + pad),
                           b_in = to_device(b, b_columns + pad);
    for (const TestType beta : {TestType(0), TestType(1)}) {
      // beta = 0 overwrites NaN; what lies between the rows stays.
      const TestType before = beta == 0 ? TestType(NAN) : TestType(2);
      const Matrix<TestType> c =
          to_device(std::vector<TestType>(s.m * (s.n + pad), before), s.n + pad);
      gemm(ExecSpace(), op_a, op_b, TestType(0.5),
           strided_matrix<const TestType>(a_in.data(), a_rows, a_columns, a_columns + pad),
           strided_matrix<const TestType>(b_in.data(), b_rows, b_columns, b_columns + pad), beta,
           strided_matrix(c.data(), s.m, s.n, s.n + pad));
      const auto made = to_host(c);
      double worst = 0;
      for (int i = 0; i < s.m; ++i) {
        for (int j = 0; j < s.n; ++j) {
          double sum = beta == 0 ? 0 : 2;
          for (int l = 0; l < s.k; ++l)
            sum += 0.5 *
                   (op_a == Transpose::no ? a[i * (a_columns + pad) + l]
                                          : a[l * (a_columns + pad) + i]) *
                   (op_b == Transpose::no ? b[l * (b_columns + pad) + j]
                                          : b[j * (b_columns + pad) + l]);
          const double error = std::abs(made[i * (s.n + pad) + j] - sum);
          if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
        }
        for (int j = s.n; j < s.n + pad; ++j) {
          const TestType between = made[i * (s.n + pad) + j];
          CHECK((beta == 0 ? std::isnan(between) : between == before));
        }
      }
      CHECK(worst < tolerance);
    }
  }
}

TEST_CASE("A linear layer's parameter gradients and bias", "[kernels][linear]") {
  const ExecSpace exec;
  for (const int out : {1, 63, 64, 65, 200}) {
    const int N = 7, in = 5;
    const auto x = random_values(N * in, 1), w = random_values(in * out, 2),
               b = random_values(out, 3), dy = random_values(N * out, 4);
    const auto loss = [&](const auto& w_, const auto& b_) {
      const Matrix<double> y = to_device(std::vector<double>(N * out, NAN), out);
      linear_forward<double>(exec, to_device(x, in), to_device(w_, out), to_device(b_), y);
      return dot(dy, to_host(y));
    };
    double sum = 0;
    for (int n = 0; n < N; ++n)
      for (int o = 0; o < out; ++o) {
        double value = b[o];
        for (int i = 0; i < in; ++i) value += x[n * in + i] * w[i * out + o];
        sum += dy[n * out + o] * value;
      }
    CHECK(loss(w, b) == Approx(sum).epsilon(1e-12));
    const Matrix<double> dw = to_device(std::vector<double>(in * out, NAN), out);
    const Vector<double> db = to_device(std::vector<double>(out, NAN));
    for (const bool accumulate : {false, true})
      linear_parameter_gradient<double>(exec, to_device(x, in), to_device(dy, out), accumulate, dw,
                                        db);
    auto dw_slope = to_host(dw), db_slope = to_host(db);  // twice: replaced, then added
    for (double& value : dw_slope) value /= 2;
    for (double& value : db_slope) value /= 2;
    CHECK(slope_error([&](const auto& v) { return loss(v, b); }, w, dw_slope) < 1e-8);
    CHECK(slope_error([&](const auto& v) { return loss(w, v); }, b, db_slope) < 1e-8);
  }
}

TEST_CASE("GELU is its formula and its gradient the slope", "[kernels][gelu]") {
  const ExecSpace exec;
  for (const int F : {1, 15, 16, 17, 131}) {
    const auto h = random_values(3 * F, F, 6), dy = random_values(3 * F, 3);
    std::vector<double> truth(3 * F);
    std::transform(h.begin(), h.end(), truth.begin(), gelu_formula);
    CHECK(relative_difference(gelu_of(h, F), truth) < 1e-14);
    CHECK(relative_difference(gelu_of(std::vector<float>(h.begin(), h.end()), F), truth) < 1e-6);

    const Matrix<double> dh = to_device(dy, F), y("test::y", 3, F);
    activation_backward<double>(exec, Activation::gelu_tanh, to_device(h, F), dh,
                                MatrixRef<double>(y));
    CHECK(relative_difference(to_host(y), truth) < 1e-14);
    const auto loss = [&](const auto& x) { return dot(dy, gelu_of(x, F)); };
    CHECK(slope_error(loss, h, to_host(dh)) < 1e-8);
  }
  CHECK(gelu_of<float>({0.0f}, 1)[0] == 0);
  CHECK(gelu_of<float>({1e10f}, 1)[0] == 1e10f);
  CHECK(gelu_of<float>({-50.0f}, 1)[0] == Approx(0).margin(1e-30));
  CHECK(std::isnan(gelu_of<float>({NAN}, 1)[0]));
}

TEST_CASE("Activations are their formulas and their gradients the slopes", "[kernels][gelu]") {
  const ExecSpace exec;
  const auto formula = [](Activation activation, double x) {
    if (activation == Activation::relu) return std::max(x, 0.0);
    if (activation == Activation::gelu_tanh) return gelu_formula(x);
    return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
  };
  for (const Activation activation :
       {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu})
    for (const int F : {1, 15, 16, 17, 131}) {
      const auto h = random_values(3 * F, F, 6), dy = random_values(3 * F, 3);
      std::vector<double> truth;
      for (const double x : h) truth.push_back(formula(activation, x));
      const Matrix<double> y("test::y", 3, F), dh = to_device(dy, F);
      const auto of = [&](const std::vector<double>& x) {
        activation_forward<double>(exec, activation, to_device(x, F), MatrixRef<double>(y));
        return to_host(y);
      };
      CHECK(relative_difference(of(h), truth) < 1e-14);
      activation_backward<double>(exec, activation, to_device(h, F), dh, MatrixRef<double>(y));
      CHECK(relative_difference(to_host(y), truth) < 1e-14);
      CHECK(slope_error([&](const auto& x) { return dot(dy, of(x)); }, h, to_host(dh)) < 1e-8);
    }
}

TEST_CASE("Activations hide no NaN; exact GELU keeps its small values", "[kernels][gelu]") {
  const auto of = [](Activation activation, float x) {
    const Matrix<float> y("test::y", 1, 1);
    activation_forward<float>(ExecSpace(), activation, to_device(std::vector<float>{x}, 1),
                              MatrixRef<float>(y));
    return to_host(y)[0];
  };
  for (const Activation activation : {Activation::gelu_erf, Activation::relu}) {
    CHECK(std::isnan(of(activation, NAN)));
    CHECK(of(activation, 0) == 0);
    CHECK(of(activation, 1e10f) == 1e10f);
    CHECK(of(activation, -1e10f) == 0);
  }
  // torch.nn.functional.gelu(torch.tensor(-5.)) = -1.4333e-06
  CHECK(of(Activation::gelu_erf, -5) == Approx(-1.43325787e-06).epsilon(1e-5));
  CHECK(of(Activation::gelu_erf, 1) == Approx(0.841344746).epsilon(1e-6));
}

TEST_CASE("GELU far out has no slope but a finite one", "[kernels][gelu]") {
  for (const float x : {-1e3f, -1e5f, -1e10f, 1e3f, 1e5f, 1e10f}) {
    INFO("x = " << x);
    const Matrix<float> dh = to_device(std::vector<float>{1}, 1), y("test::y", 1, 1);
    activation_backward<float>(ExecSpace(), Activation::gelu_tanh,
                               to_device(std::vector<float>{x}, 1), dh, MatrixRef<float>(y));
    CHECK(to_host(dh)[0] == (x < 0 ? 0 : 1));
    CHECK(to_host(y)[0] == (x < 0 ? 0 : x));
  }
}

TEST_CASE("Dropout drops its share and keeps the mean", "[kernels][dropout]") {
  for (const double p : {0.1, 0.5, 0.9}) {
    const std::vector<std::uint64_t> ids = {3, 4, 1ull << 40};
    const auto mask = mask_of(ids, 50, 200, p);
    std::size_t dropped = 0;
    for (const double factor : mask) {
      dropped += factor == 0;
      REQUIRE((factor == 0 || factor == Approx(1 / (1 - p)).epsilon(1e-6)));
    }
    const double count = static_cast<double>(mask.size());
    const double deviation = std::sqrt(p * (1 - p) / count);
    CHECK(dropped / count == Approx(p).margin(4 * deviation));
  }
  for (const double factor : mask_of({1}, 3, 5, 0)) CHECK(factor == 1);
}

TEST_CASE("A sample's dropout mask depends on the sample, step and site alone",
          "[kernels][dropout]") {
  const int T = 6, C = 13;
  const std::ptrdiff_t size = T * C;
  const auto mask = mask_of({7, 8, 9}, T, C, 0.4);
  const auto moved = mask_of({9, 7}, T, C, 0.4);
  const auto part = [&](const std::vector<double>& all, int b) {
    return std::vector<double>(all.begin() + b * size, all.begin() + (b + 1) * size);
  };
  CHECK(part(mask, 0) == part(moved, 1));
  CHECK(part(mask, 2) == part(moved, 0));
  CHECK(part(mask, 0) != part(mask, 1));
  CHECK(part(mask, 0) != mask_of({7}, T, C, 0.4, 2));
  CHECK(part(mask, 0) != mask_of({7}, T, C, 0.4, 1, 1));
  CHECK(part(mask, 0) != mask_of({7 + (1ull << 32)}, T, C, 0.4));
  // No two rows of a sample have the same mask.
  for (int t = 1; t < T; ++t)
    CHECK(!std::equal(mask.begin(), mask.begin() + C, mask.begin() + t * C));
}

TEST_CASE("Bias, dropout and residual, forwards and backwards", "[kernels][dropout]") {
  const double p = GENERATE(0.0, 0.25);
  for (const int C : {1, 3, 4, 21}) {
    const int T = 3;
    const std::vector<std::uint64_t> ids = {5, 6};
    const int N = static_cast<int>(ids.size()) * T;
    const Vector<std::uint64_t> on_device = to_device(ids);
    const auto residual = random_values(N * C, 1), branch = random_values(N * C, 2),
               b = random_values(C, 3);
    const Matrix<double> out = to_device(std::vector<double>(N * C, NAN), C);
    bias_dropout_residual<double>(ExecSpace(), to_device(residual, C), to_device(branch, C),
                                  to_device(b), dropout_of(p, on_device, T), out);
    const auto mask = mask_of(ids, T, C, p);
    std::vector<double> truth(N * C);
    for (int i = 0; i < N * C; ++i) truth[i] = residual[i] + mask[i] * (branch[i] + b[i % C]);
    CHECK(relative_difference(to_host(out), truth) < 1e-15);

    const int in = 2;
    const auto x = random_values(N * in, 4), w = random_values(in * C, 5);
    const Matrix<double> joined = to_device(std::vector<double>(N * C, NAN), C),
                         workspace = to_device(std::vector<double>(N * C, NAN), C);
    linear_residual_forward<double>(ExecSpace(), to_device(x, in), to_device(w, C), to_device(b),
                                    to_device(residual, C), dropout_of(p, on_device, T), workspace,
                                    joined);
    for (int i = 0; i < N * C; ++i) {
      const double product = x[i / C * in] * w[i % C] + x[i / C * in + 1] * w[C + i % C];
      truth[i] = residual[i] + mask[i] * (product + b[i % C]);
    }
    CHECK(relative_difference(to_host(joined), truth) < 1e-14);
  }
}

TEST_CASE("Embeddings, their gradients and rows of tables", "[kernels][embedding]") {
  const ExecSpace exec;
  const int T = 5, V = 9;
  const int C = GENERATE(1, 16, 19);
  const std::vector<std::int32_t> tokens = {3, 1, 3, 8, 0, 1, 1, 1, 0, 3};
  const int N = static_cast<int>(tokens.size());
  const auto table = random_values(V * C, 1), positions = random_values(8 * C, 2),
             dx = random_values(N * C, 3);
  const auto embed = [&](const auto& table_, const auto& positions_) {
    const Matrix<double> x("test::x", N, C);
    embedding_forward<double>(exec, to_device(tokens), T, to_device(table_, C),
                              to_device(positions_, C), x);
    return to_host(x);
  };
  const auto x = embed(table, positions);
  for (int n = 0; n < N; ++n)
    for (int c = 0; c < C; ++c)
      CHECK(x[n * C + c] == table[tokens[n] * C + c] + positions[n % T * C + c]);

  const Matrix<double> dposition = to_device(std::vector<double>(8 * C, NAN), C);
  for (const bool accumulate : {false, true})
    position_gradient<double>(exec, to_device(dx, C), T, accumulate, dposition);
  auto slope = to_host(dposition);
  for (double& value : slope) value /= 2;
  CHECK(slope_error([&](const auto& v) { return dot(dx, embed(table, v)); }, positions, slope) <
        1e-9);

  // The distinct tokens 0, 1, 3, 8, the rows where each stands, and the table's gradient.
  const auto distinct = to_device(std::vector<std::int32_t>{0, 1, 3, 8});
  const auto first_of = to_device(std::vector<std::int32_t>{0, 2, 6, 9, 10});
  const auto row_of = to_device(std::vector<std::int32_t>{4, 8, 1, 5, 6, 7, 0, 2, 9, 3});
  const Matrix<double> sums = to_device(std::vector<double>(4 * C, NAN), C);
  token_gradient<double>(exec, to_device(dx, C), first_of, row_of, sums);
  const Matrix<double> dtable("test::dtable", V, C);
  add_rows<double>(exec, distinct, sums, dtable);
  CHECK(slope_error([&](const auto& v) { return dot(dx, embed(v, positions)); }, table,
                    to_host(dtable)) < 1e-9);

  const Matrix<double> rows("test::rows", 4, C);
  gather_rows<double>(exec, to_device(table, C), distinct, rows);
  const auto gathered = to_host(rows);
  const std::int32_t expected[] = {0, 1, 3, 8};
  for (int u = 0; u < 4; ++u)
    for (int c = 0; c < C; ++c) CHECK(gathered[u * C + c] == table[expected[u] * C + c]);
}
