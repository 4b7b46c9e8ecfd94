// SPDX-License-Identifier: BSD-3-Clause
// Gradients against central differences, in double.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "core/base/numeric/random.hpp"

namespace deltapipe::test {

/// Values in [-scale, scale), the same for the same seed.
template <class Real = double>
std::vector<Real> random_values(std::size_t count, std::uint64_t seed, double scale = 1) {
  std::vector<Real> values(count);
  std::uint64_t state = mix_bits(seed + 1);
  for (Real& value : values) {
    state += 0x9e3779b97f4a7c15ull;
    const double unit = static_cast<double>(mix_bits(state) >> 11) / (1ull << 53);
    value = static_cast<Real>(scale * (2 * unit - 1));
  }
  return values;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Largest |central difference - gradient| over all elements, relative to the largest gradient
/// (or 1): of order 1e-9 where the gradient is right.
inline double slope_error(const std::function<double(const std::vector<double>&)>& function,
                          const std::vector<double>& at, const std::vector<double>& gradient,
                          double h = 1e-5) {
  if (at.size() != gradient.size()) return INFINITY;
  double worst = 0, largest = 1;
  std::vector<double> moved = at;
  for (std::size_t i = 0; i < at.size(); ++i) {
    moved[i] = at[i] + h;
    const double above = function(moved);
    moved[i] = at[i] - h;
    const double below = function(moved);
    moved[i] = at[i];
    const double error = std::abs((above - below) / (2 * h) - gradient[i]);
    if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
    largest = std::max(largest, std::abs(gradient[i]));
  }
  return worst / largest;
}

/// Largest |a - b| over the largest |b| (or `least`); infinite for NaN or another length.
template <class A, class B>
double relative_difference(const std::vector<A>& a, const std::vector<B>& b, double least = 0) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0, largest = least;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= worst)) worst = std::isnan(difference) ? INFINITY : difference;
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return worst == 0 ? 0 : worst / largest;
}

}  // namespace deltapipe::test
