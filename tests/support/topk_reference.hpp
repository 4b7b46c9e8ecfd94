// SPDX-License-Identifier: BSD-3-Clause
// TopK and its payload as they should be, written for reading.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

namespace deltapipe::test {

inline std::size_t naive_k(double part, std::size_t size) {
  if (size == 0) return 0;
  const double share = std::round(part * static_cast<double>(size));
  return std::min(size, static_cast<std::size_t>(std::max(share, 1.0)));
}

/// An infinity is as large as the largest number, NaN as small as zero.
inline double naive_magnitude(float x) {
  if (std::isnan(x)) return 0;
  return std::min(std::abs(double{x}), double{std::numeric_limits<float>::max()});
}

/// Positions of the k values of largest magnitude, of equal ones the first; zeros left out.
inline std::vector<std::uint32_t> naive_topk(const std::vector<float>& x, std::size_t k) {
  std::vector<std::uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto before = [&x](std::uint32_t a, std::uint32_t b) {
    const double size_a = naive_magnitude(x[a]), size_b = naive_magnitude(x[b]);
    return size_a > size_b || (size_a == size_b && a < b);
  };
  if (k < order.size())
    std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                     before);
  order.resize(std::min(k, order.size()));
  std::erase_if(order, [&x](std::uint32_t i) { return naive_magnitude(x[i]) == 0; });
  std::sort(order.begin(), order.end());
  return order;
}

/// Zeros but for the chosen values.
inline std::vector<float> naive_sparse(const std::vector<float>& x, std::size_t k) {
  std::vector<float> y(x.size());
  for (const std::uint32_t i : naive_topk(x, k)) {
    const float largest = std::numeric_limits<float>::max();
    y[i] = std::clamp(x[i], -largest, largest);
  }
  return y;
}

struct TopKHeader {
  std::uint32_t count, words;
  std::uint8_t format, bits;
  std::int16_t exponent;
};

inline TopKHeader header_at(const std::vector<std::uint8_t>& payload, std::size_t sample) {
  TopKHeader header;
  std::memcpy(&header, payload.data() + 12 * sample, 12);
  return header;
}

/// Positions, bit by bit.
inline std::vector<std::uint32_t> naive_positions(const TopKHeader& header,
                                                  const std::uint8_t* bytes, std::uint32_t size) {
  const auto bit = [bytes](std::size_t i) -> std::uint32_t { return bytes[i / 8] >> i % 8 & 1; };
  const auto field = [&](std::size_t i) {
    std::uint32_t value = 0;
    for (std::uint32_t b = 0; b < header.bits; ++b) value |= bit(i * header.bits + b) << b;
    return value;
  };
  std::vector<std::uint32_t> positions;
  if (header.format == 0)
    for (std::uint32_t i = 0; i < size; ++i) positions.push_back(i);
  if (header.format == 1)
    for (std::uint32_t i = 0; i < size; ++i)
      if (bit(i) != 0) positions.push_back(i);
  if (header.format == 2) {
    std::size_t at = (std::size_t{header.count} * header.bits + 31) / 32 * 32;
    std::uint32_t next = 0;
    for (std::uint32_t i = 0; i < header.count; ++i) {
      std::uint32_t quotient = 0;
      while (bit(at++) == 0) ++quotient;
      next += field(i) + (quotient << header.bits);
      positions.push_back(next++);
    }
  }
  if (header.format == 3)
    for (std::uint32_t i = 0; i < header.count; ++i) positions.push_back(field(i));
  return positions;
}

/// Words that positions take in each format; the largest number where it cannot hold them.
struct PositionWords {
  std::size_t all = std::numeric_limits<std::size_t>::max();
  std::size_t bitmap, indices;
  std::size_t gaps = std::numeric_limits<std::size_t>::max();
  std::size_t least() const { return std::min({all, bitmap, indices, gaps}); }
};

inline PositionWords position_words(const std::vector<std::uint32_t>& positions,
                                    std::uint32_t size) {
  const auto words = [](std::size_t bits) { return (bits + 31) / 32; };
  PositionWords result;
  if (positions.size() == size) result.all = 0;
  result.bitmap = words(size);
  std::size_t bits = 0;
  while ((std::uint64_t{1} << bits) < size) ++bits;
  result.indices = words(positions.size() * bits);
  std::size_t shortest = std::numeric_limits<std::size_t>::max();
  for (std::size_t b = 1; b <= 30 && !positions.empty(); ++b) {
    std::size_t ones_and_zeros = positions.size();
    std::uint32_t next = 0;
    for (const std::uint32_t position : positions) {
      ones_and_zeros += (position - next) >> b;
      next = position + 1;
    }
    if (positions.size() * b + ones_and_zeros >= shortest) continue;
    shortest = positions.size() * b + ones_and_zeros;
    result.gaps = words(positions.size() * b) + words(ones_and_zeros);
  }
  return result;
}

}  // namespace deltapipe::test
