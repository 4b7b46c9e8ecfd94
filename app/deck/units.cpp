// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/units.hpp"

#include <array>
#include <charconv>
#include <cmath>

namespace deltapipe::deck {

namespace {

double in_base(double number, const Unit& unit) {
  return unit.divisor > 1 ? number / unit.divisor : number * unit.multiplier;
}

double from_base(double value, const Unit& unit) {
  return unit.divisor > 1 ? value * unit.divisor : value / unit.multiplier;
}

std::string_view without_leading_spaces(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return text;
}

}  // namespace

std::string format_number(double value) {
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

std::string format_real(double value) {
  const std::string text = format_number(value);
  const bool is_integer = text.find_first_not_of("-0123456789") == std::string::npos;
  return is_integer ? text + ".0" : text;
}

std::optional<double> parse_quantity(std::string_view text, std::span<const Unit> units) {
  text = without_leading_spaces(text);
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  text = without_leading_spaces(text);
  if (text.empty()) return number;
  for (const Unit& unit : units) {
    if (text != unit.name) continue;
    const double value = in_base(number, unit);
    return std::isfinite(value) ? std::optional(value) : std::nullopt;
  }
  return std::nullopt;
}

std::string format_quantity(double value, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    const double number = from_base(value, unit);
    if (number < 1 || number >= 1e6) continue;
    const std::string text = format_number(number) + " " + unit.name;
    if (text.size() <= 16 && parse_quantity(text, units) == value) return text;
  }
  return format_number(value);
}

std::string unit_names(std::span<const Unit> units) {
  std::string names;
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    names += (names.empty() ? "" : ", ") + std::string(unit->name);
  }
  return names;
}

}  // namespace deltapipe::deck
