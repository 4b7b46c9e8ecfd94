// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/deck_toml.hpp"

#include <fmt/format.h>

#include <optional>
#include <sstream>
#include <utility>
#include <variant>

#include "app/deck/deck_mistakes.hpp"
#include "app/deck/toml_scan.hpp"
#include "core/base/printable.hpp"

namespace deltapipe::deck {

namespace {

[[noreturn]] void refuse_flaw(const TomlFlaw& flaw, DeckPlace place) {
  if (place.line > 0) place.line = flaw.line;
  if (flaw.kind == TomlFlaw::nesting) {
    refuse(place, fmt::format("nested deeper than {} levels", max_nesting), {},
           "a deck has sections, keys and lists of values");
  }
  refuse(place, "not valid TOML: a letter outside ASCII that is in no text, or behind a backslash",
         {}, "names of sections and keys may hold A-Z, a-z, 0-9, _ and -");
}

/// The value of a line "key = value" that is neither quoted, a number, a date, a truth value nor a
/// bracket, without the comment after it; "" for other lines.
std::string bare_word_at(const std::string& text, std::size_t line) {
  std::istringstream lines(text);
  std::string found;
  for (std::size_t n = 0; n < line; ++n)
    if (!std::getline(lines, found)) return "";
  const std::size_t equals = found.find('=');
  if (equals == std::string::npos) return "";
  std::string value = found.substr(equals + 1, found.find('#', equals) - equals - 1);
  const char* const spaces = " \t\r";
  const std::size_t first = value.find_first_not_of(spaces);
  if (first == std::string::npos) return "";
  value = value.substr(first, value.find_last_not_of(spaces) - first + 1);
  const bool starts_text = (value[0] >= 'a' && value[0] <= 'z') ||
                           (value[0] >= 'A' && value[0] <= 'Z') || value[0] == '/' ||
                           value[0] == '.' || value[0] == '~' || value[0] == '_';
  const bool has_unit = value[0] >= '0' && value[0] <= '9' &&
                        value.find_first_of("bBsm") != std::string::npos &&
                        value.find_first_of("\"'[]{},") == std::string::npos;
  if (!starts_text && !has_unit) return "";
  if (value == "true" || value == "false" || value.find_first_of("\"'\\") != std::string::npos)
    return "";
  return printable(value, 60);
}

/// The one value of "value = TEXT", or nothing when that is not TOML.
std::optional<toml::table> parse_value(const std::string& toml) {
  try {
    toml::table table = toml::parse(toml);
    if (table.size() == 1) return table;
  } catch (const toml::parse_error&) {
  } catch (const TomlAssertion&) {
  }
  return std::nullopt;
}

toml::table string_value(const std::string& text) {
  toml::table table;
  table.insert("value", text);
  return table;
}

}  // namespace

toml::table parse_toml(const std::string& text, const std::string& file) {
  std::string safe = text;
  if (const auto flaw = make_safe(safe)) refuse_flaw(*flaw, {file, 1, 0});
  try {
    return toml::parse(safe, file);
  } catch (const toml::parse_error& error) {
    const std::string word = bare_word_at(text, error.source().begin.line);
    if (!word.empty())
      refuse(place_in(file, error.source()), "a text without quotes", word,
             fmt::format("put it in quotes: \"{}\"", word));
    refuse(place_in(file, error.source()), "not valid TOML: " + std::string(error.description()));
  } catch (const TomlAssertion&) {
    refuse({file}, "not valid TOML", {}, "a section's name may hold A-Z, a-z, 0-9, _ and -");
  }
}

toml::table value_of_override(const std::string& text, const Key& key, const DeckPlace& place) {
  const bool quoted = !text.empty() && std::string("\"'[{").find(text[0]) != std::string::npos;
  const bool bare_text = !quoted && (std::holds_alternative<Text>(key.target) ||
                                     std::holds_alternative<TextList>(key.target) ||
                                     std::holds_alternative<Choice>(key.target));
  std::string toml = "value = " + text;
  const std::optional<TomlFlaw> flaw = bare_text ? std::nullopt : make_safe(toml);
  if (flaw && flaw->kind == TomlFlaw::nesting) refuse_flaw(*flaw, place);
  std::optional<toml::table> table;
  if (!bare_text && !flaw) table = parse_value(toml);
  if (!table && !quoted) table = string_value(text);
  if (!table) refuse(place, "not a valid TOML value", text, "check its quotes and brackets");
  return *std::move(table);
}

}  // namespace deltapipe::deck
