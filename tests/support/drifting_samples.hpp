// SPDX-License-Identifier: BSD-3-Clause
// Crossings of three samples whose values drift from step to step, for codecs with memories.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/codec/codec.hpp"

namespace deltapipe::test {

using Floats = std::vector<float>;

inline constexpr CodecShape kShape{2, 3, 37};
inline constexpr std::size_t kSampleValues = 3 * 37;

/// Samples are first seen at different steps; sample 1 has two valid tokens.
inline const std::vector<std::vector<std::uint64_t>> kSteps = {{0, 1}, {1, 2}, {2, 0},
                                                               {1},    {0, 1}, {2}};

inline std::vector<int> tokens_of(const std::vector<std::uint64_t>& ids) {
  std::vector<int> tokens;
  for (const std::uint64_t id : ids) tokens.push_back(id == 1 ? 2 : 3);
  return tokens;
}

/// Values of a sample that drift from step to step.
inline Floats values_of(std::uint64_t id, int step) {
  std::mt19937 random(static_cast<unsigned>(id + 1));
  std::normal_distribution<float> normal;
  Floats x(static_cast<std::size_t>(id == 1 ? 2 : 3) * 37);
  for (float& value : x) value = normal(random);
  random.seed(static_cast<unsigned>(1000 + step * 10 + static_cast<int>(id)));
  for (float& value : x) value += 0.2f * normal(random);
  return x;
}

inline Floats rows_of(const std::vector<std::uint64_t>& ids, int step) {
  Floats rows(2 * kSampleValues, std::nanf(""));
  for (std::size_t b = 0; b < ids.size(); ++b) {
    const Floats x = values_of(ids[b], step);
    std::copy(x.begin(), x.end(), rows.begin() + static_cast<std::ptrdiff_t>(b * kSampleValues));
  }
  return rows;
}

inline Floats sample_of(const Floats& rows, std::size_t b, std::size_t size) {
  const auto first = rows.begin() + static_cast<std::ptrdiff_t>(b * kSampleValues);
  return {first, first + static_cast<std::ptrdiff_t>(size)};
}

inline Floats sum(const Floats& a, const Floats& b, float factor = 1) {
  Floats result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = a[i] + factor * b[i];
  return result;
}

}  // namespace deltapipe::test
