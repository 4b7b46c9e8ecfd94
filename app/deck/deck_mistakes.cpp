// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/deck_mistakes.hpp"

#include <sstream>
#include <utility>

#include "app/deck/units.hpp"
#include "core/base/error.hpp"
#include "core/base/printable.hpp"

namespace deltapipe::deck {

namespace {

/// Elements one by one: toml++ estimates how wide an array will be from the logarithms of its
/// numbers; infinity does not fit an integer.
std::string toml_of(const toml::node& node) {
  if (node.is_table()) return "{ ... }";
  if (const toml::array* const array = node.as_array()) {
    std::string text;
    for (const toml::node& element : *array)
      text += (text.empty() ? "[ " : ", ") + toml_of(element);
    return text.empty() ? "[]" : text + " ]";
  }
  // toml++ writes 17 digits.
  if (const auto* const number = node.as_floating_point()) return format_real(number->get());
  std::ostringstream text;
  node.visit([&](const auto& value) {
    text << toml::toml_formatter{value, toml::format_flags::quote_dates_and_times};
  });
  return text.str();
}

}  // namespace

std::string shown(const toml::node& node) {
  return node.is_table() ? "a table" : printable(toml_of(node), 57);
}

DeckPlace place_in(const std::string& file, const toml::source_region& source) {
  return {file, source.begin.line, source.begin.column};
}

void refuse(const DeckPlace& place, std::string what, std::string value, std::string remedy) {
  throw UserError({.what = std::move(what),
                   .file = place.file,
                   .line = place.line,
                   .column = place.column,
                   .value = std::move(value),
                   .remedy = std::move(remedy)});
}

}  // namespace deltapipe::deck
