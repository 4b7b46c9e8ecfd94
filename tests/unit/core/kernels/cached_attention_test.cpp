// SPDX-License-Identifier: BSD-3-Clause
// Attention over kept keys and values against the formula in double, and products of one row.
#include "core/kernels/attention/cached_attention.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "core/kernels/gemm/gemv.hpp"
#include "support/device_values.hpp"
#include "support/finite_differences.hpp"

using namespace deltapipe;
using deltapipe::test::random_values;
using deltapipe::test::relative_difference;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

namespace {

/// Attention of tokens [first, first + count) of qkv, a sample of T tokens of 3C values.
std::vector<double> formula(const AttentionShape& shape, const std::vector<double>& qkv, int first,
                            int count) {
  const int C = shape.channels(), D = shape.head_width;
  std::vector<double> out(count * C);
  for (int n = 0; n < count; ++n)
    for (int h = 0; h < shape.heads; ++h) {
      const auto at = [&](int t, int part) { return qkv.data() + (t * 3 + part) * C + h * D; };
      std::vector<double> p(first + n + 1);
      double sum = 0, top = -INFINITY;
      for (std::size_t j = 0; j < p.size(); ++j) {
        p[j] = 0;
        for (int d = 0; d < D; ++d) p[j] += at(first + n, 0)[d] * at(j, 1)[d];
        p[j] /= std::sqrt(static_cast<double>(D));
        top = std::max(top, p[j]);
      }
      for (double& value : p) sum += value = std::exp(value - top);
      for (std::size_t j = 0; j < p.size(); ++j)
        for (int d = 0; d < D; ++d) out[n * C + h * D + d] += p[j] / sum * at(j, 2)[d];
    }
  return out;
}

/// The same by the kernels, in pieces that end at `ends`; what is not kept yet is NaN.
template <class Real>
std::vector<Real> attend(const AttentionShape& shape, const std::vector<double>& qkv,
                         const std::vector<int>& ends) {
  const ExecSpace exec;
  const int C = shape.channels();
  const Real nan = std::numeric_limits<Real>::quiet_NaN();
  const Matrix<Real> kept = to_device(std::vector<Real>(shape.tokens * 2 * C, nan), 2 * C);
  const Vector<Real> workspace =
      to_device(std::vector<Real>(cached_attention_workspace(shape), nan));
  const Vector<Real> log_sum = to_device(std::vector<Real>(shape.tokens * shape.heads, nan));
  std::vector<Real> all;
  int first = 0;
  for (const int end : ends) {
    const std::vector<Real> part(qkv.begin() + first * 3 * C, qkv.begin() + end * 3 * C);
    const Matrix<Real> rows = to_device(part, 3 * C);
    const Matrix<Real> out = to_device(std::vector<Real>((end - first) * C, nan), C);
    keep_keys_and_values<Real>(exec, rows, first, kept);
    cached_attention_forward<Real>(exec, shape, first, rows, kept, workspace, out, log_sum);
    const auto made = to_host(out);
    all.insert(all.end(), made.begin(), made.end());
    first = end;
  }
  return all;
}

std::vector<int> one_by_one(int tokens) {
  std::vector<int> ends;
  for (int t = 1; t <= tokens; ++t) ends.push_back(t);
  return ends;
}

}  // namespace

TEST_CASE("Attention to kept keys and values is the formula", "[kernels][attention][text]") {
  const AttentionShape shape =
      GENERATE(AttentionShape{1, 1, 1, 1}, AttentionShape{1, 2, 5, 3}, AttentionShape{1, 17, 3, 12},
               AttentionShape{1, 140, 2, 5}, AttentionShape{1, 300, 2, 20});
  CAPTURE(shape.tokens, shape.heads, shape.head_width);
  const auto qkv = random_values(shape.tokens * 3 * shape.channels(), 1, 2);
  const auto truth = formula(shape, qkv, 0, shape.tokens);
  const int T = shape.tokens;
  for (const std::vector<int>& ends :
       {one_by_one(T), std::vector<int>{T}, {1, T}, {T / 2, T / 2 + 1, T}}) {
    if (ends.front() == 0 || (ends.size() > 1 && ends[ends.size() - 2] == T)) continue;
    CAPTURE(ends);
    CHECK(relative_difference(attend<double>(shape, qkv, ends), truth) < 1e-12);
    CHECK(relative_difference(attend<float>(shape, qkv, ends), truth) < 1e-5);
  }
}

TEST_CASE("Kept attention with huge scores stays finite; NaN shows where it is seen",
          "[kernels][attention][text]") {
  const AttentionShape shape{1, 20, 1, 4};
  for (const float value : attend<float>(shape, random_values(240, 1, 1e4), one_by_one(20)))
    CHECK((std::isfinite(value) && std::abs(value) <= 1e4f));
  for (const float value : attend<float>(shape, std::vector<double>(240, 0.0), one_by_one(20)))
    CHECK(value == 0);
  auto bad = random_values(240, 1);
  bad[10 * 12 + 4] = NAN;  // a key
  const auto out = attend<float>(shape, bad, one_by_one(20));
  for (int i = 0; i < 80; ++i) CHECK(std::isnan(out[i]) == (i / 4 >= 10));
}

TEMPLATE_TEST_CASE("Products of a matrix and a row", "[kernels][gemm][text]", float, double) {
  const double tolerance = std::is_same_v<TestType, float> ? 1e-5 : 1e-13;
  for (const auto& [rows, columns] :
       {std::pair{1, 1}, {1, 19}, {19, 1}, {5, 7}, {64, 33}, {257, 130}}) {
    const auto a = random_values<TestType>(rows * columns, 1);
    const Matrix<TestType> matrix = to_device(a, columns);
    for (const auto op : {Transpose::no, Transpose::yes})
      for (const TestType beta : {TestType(0), TestType(1)}) {
        const int in = op == Transpose::no ? columns : rows, out = rows + columns - in;
        CAPTURE(rows, columns, op == Transpose::yes, beta);
        const auto x = random_values<TestType>(in, 2);
        const Vector<TestType> y =
            to_device(std::vector<TestType>(out, beta == 0 ? TestType(NAN) : TestType(2)));
        const Vector<TestType> on_device = to_device(x);
        gemv(ExecSpace(), op, matrix, on_device, beta, y);
        Kokkos::fence();
        std::vector<double> truth(out, beta == 0 ? 0 : 2);
        for (int r = 0; r < rows; ++r)
          for (int c = 0; c < columns; ++c)
            truth[op == Transpose::no ? r : c] +=
                static_cast<double>(a[r * columns + c]) * x[op == Transpose::no ? c : r];
        CHECK(relative_difference(to_host(y), truth) < tolerance);
      }
  }
}
