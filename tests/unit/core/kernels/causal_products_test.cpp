// SPDX-License-Identifier: BSD-3-Clause
// Products of causal attention in tiles, against sums one by one.
#include "core/kernels/attention/causal_products.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "support/finite_differences.hpp"

using namespace deltapipe;
using causal::Queries;
using causal::Rows;
using test::random_values;

namespace {

/// Matrices with gaps between rows that must not be read or written.
template <class Real>
struct Wide {
  int rows, columns;
  std::size_t stride;
  std::vector<Real> values;

  Wide(int height, int width, const std::vector<Real>& of)
      : rows(height), columns(width), stride(width + 3), values(stride * height, nan()) {
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j) (*this)(i, j) = of[i * columns + j];
  }
  Wide(int height, int width) : Wide(height, width, std::vector<Real>(height * width, nan())) {}

  static Real nan() { return std::numeric_limits<Real>::quiet_NaN(); }
  Real& operator()(int i, int j) { return values[i * stride + j]; }
  Real operator()(int i, int j) const { return values[i * stride + j]; }
  Rows<Real> all() { return {values.data(), stride}; }
  Rows<const Real> all() const { return {values.data(), stride}; }
  /// The gaps between rows are unchanged.
  bool kept_its_gaps() const {
    for (int i = 0; i < rows; ++i)
      for (std::size_t j = columns; j < stride; ++j)
        if (!std::isnan(values[i * stride + j])) return false;
    return true;
  }
};

/// True if `made` is `first` and term(n) for n in [0, count), but for rounding.
template <class Real, class Term>
bool is_sum(Real made, int count, const Term& term, double first = 0) {
  double sum = first, size = std::abs(first);
  for (int n = 0; n < count; ++n) {
    sum += term(n);
    size += std::abs(term(n));
  }
  return std::abs(made - sum) <= 4 * std::numeric_limits<Real>::epsilon() * (1 + size);
}

template <class Real>
void check(const Queries& queries, int width) {
  const int keys = queries.first + queries.count;
  const auto sees = [&](int i, int j) { return j <= queries.first + i; };
  const Wide<Real> x_QD(queries.count, width, random_values<Real>(queries.count * width, 1));
  const Wide<Real> k_KD(keys, width, random_values<Real>(keys * width, 2));
  Wide<Real> p_QK(queries.count, keys, random_values<Real>(queries.count * keys, 3));
  for (int i = 0; i < queries.count; ++i)
    for (int j = 0; j < keys; ++j)
      if (!sees(i, j)) p_QK(i, j) = 0;

  std::vector<Real> packed(causal::packed_elements(keys, width), Wide<Real>::nan());
  causal::pack<Real>(keys, width, k_KD.all(), packed.data());
  Wide<Real> scores_QK(queries.count, keys);
  causal::scores<Real>(queries, width, x_QD.all(), packed.data(), scores_QK.all());
  CHECK(scores_QK.kept_its_gaps());
  int wrong = 0;
  for (int i = 0; i < queries.count; ++i)
    for (int j = 0; j < keys; ++j) {
      if (!sees(i, j)) continue;
      const auto term = [&](int d) { return static_cast<double>(x_QD(i, d)) * k_KD(j, d); };
      wrong += is_sum(scores_QK(i, j), width, term) ? 0 : 1;
    }
  CHECK(wrong == 0);

  Wide<Real> y_QD(queries.count, width);
  causal::weigh<Real>(queries, width, std::as_const(p_QK).all(), k_KD.all(), y_QD.all());
  CHECK(y_QD.kept_its_gaps());
  for (int i = 0; i < queries.count; ++i)
    for (int d = 0; d < width; ++d) {
      const auto term = [&](int j) { return static_cast<double>(p_QK(i, j)) * k_KD(j, d); };
      wrong += is_sum(y_QD(i, d), keys, term) ? 0 : 1;
    }
  CHECK(wrong == 0);

  const std::vector<Real> before = random_values<Real>(keys * width, 4);
  for (const bool accumulate : {false, true}) {
    Wide<Real> y_KD = accumulate ? Wide<Real>(keys, width, before) : Wide<Real>(keys, width);
    causal::weigh_transposed<Real>(queries, width, std::as_const(p_QK).all(), x_QD.all(),
                                   accumulate, y_KD.all());
    CHECK(y_KD.kept_its_gaps());
    for (int j = 0; j < keys; ++j)
      for (int d = 0; d < width; ++d) {
        const auto term = [&](int i) { return static_cast<double>(p_QK(i, j)) * x_QD(i, d); };
        const double there = accumulate ? before[j * width + d] : 0;
        wrong += is_sum(y_KD(j, d), queries.count, term, there) ? 0 : 1;
      }
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("Products of causal attention in tiles are the sums", "[kernels][attention]") {
  // Around the rows and columns of tiles, and all that their columns leave over.
  const auto [first, count] = GENERATE(
      std::pair{0, 1}, std::pair{0, 5}, std::pair{0, 6}, std::pair{0, 7}, std::pair{3, 13},
      std::pair{64, 64}, std::pair{61, 66}, std::pair{130, 65}, std::pair{200, 1}, std::pair{0, 0});
  const int width = GENERATE(1, 3, 4, 8, 15, 16, 17, 31, 32, 48, 63, 64, 65, 80, 128, 147);
  INFO("queries " << first << " + " << count << ", width " << width);
  check<float>({first, count}, width);
  check<double>({first, count}, width);
}
