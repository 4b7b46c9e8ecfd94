// SPDX-License-Identifier: BSD-3-Clause
// Properties of Unicode characters that are looked up for every character of a text.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace deltapipe {

/// Values of `bits` bits in ranges of equal value, tabulated for the Basic Multilingual Plane:
/// nearly all text.
template <int bits>
class CodePointTable {
 public:
  /// `starts`, ascending and kept: the first code point of every range << bits | value.
  explicit CodePointTable(std::span<const std::uint32_t> starts) : starts_(starts) {
    for (char32_t c = 0; c < kTabulated; ++c) values_[c] = search(c);
  }
  std::uint8_t operator()(char32_t code_point) const {
    return code_point < kTabulated ? values_[code_point] : search(code_point);
  }

 private:
  static constexpr char32_t kTabulated = 0x10000;
  static constexpr std::uint32_t kValue = (1u << bits) - 1;

  std::uint8_t search(char32_t code_point) const {
    const auto after = std::ranges::upper_bound(starts_, code_point << bits | kValue);
    return static_cast<std::uint8_t>(*(after - 1) & kValue);
  }

  std::span<const std::uint32_t> starts_;
  std::array<std::uint8_t, kTabulated> values_{};
};

}  // namespace deltapipe
