// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/number_text.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace deltapipe {

std::string number_text(const char* format, double value) {
  if (std::isnan(value)) value = std::nan("");
  std::array<char, 64> text{};
  const int length = std::snprintf(text.data(), text.size(), format, value);
  if (length < static_cast<int>(text.size())) return text.data();
  std::string whole(static_cast<std::size_t>(length) + 1, '\0');  // %f of a large number
  (void)std::snprintf(whole.data(), whole.size(), format, value);
  whole.pop_back();
  return whole;
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string hex_digits(std::uint64_t value) {
  std::string digits;
  for (int shift = 60; shift >= 0; shift -= 4) digits += "0123456789abcdef"[(value >> shift) & 15];
  return digits;
}

}  // namespace deltapipe
