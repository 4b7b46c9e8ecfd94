// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "app/deck/deck.hpp"
#include "app/deck/keys.hpp"

namespace deltapipe {

namespace deck {

namespace {

std::string json_text(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += c;
  }
  return json + "\"";
}

/// A value, or a list of such values.
std::string or_list(const std::string& one) {
  return R"("anyOf": [{)" + one + R"(}, {"type": "array", "items": {)" + one + "}}]";
}

/// `name`: "minimum" or "exclusiveMinimum" and so on.
std::string limit(const char* name, double value) {
  if (!std::isfinite(value)) return "";
  return fmt::format(R"(, "{}": {})", name, format_number(value));
}

std::string integer(std::int64_t low, std::int64_t high) {
  return fmt::format(R"("type": "integer", "minimum": {}, "maximum": {})", low, high);
}

std::string quantity(std::span<const Unit> units) {
  std::string names;
  for (const Unit& unit : units) names += (names.empty() ? "" : "|") + std::string(unit.name);
  return R"("anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": "^ *[0-9.]+([eE][-+]?[0-9]+)? *()" +
         names + R"()?$"}])";
}

/// The keywords that say what a key may hold.
struct Keywords {
  std::string operator()(const Flag&) const { return R"("type": "boolean")"; }
  std::string operator()(const Integer& i) const { return integer(i.low, i.high); }
  std::string operator()(const IntegerList& list) const {
    return or_list(integer(list.low, list.high));
  }
  std::string operator()(const Real& real) const {
    return real.or_zero ? "\"anyOf\": [{\"const\": 0}, {" + in_range(real) + "}]" : in_range(real);
  }
  static std::string in_range(const Real& real) {
    return R"("type": "number")" + limit(real.low_open ? "exclusiveMinimum" : "minimum", real.low) +
           limit(real.high_open ? "exclusiveMaximum" : "maximum", real.high);
  }
  std::string operator()(const RealList& list) const {
    return or_list(R"("anyOf": [{"const": 0}, {"type": "number")" + limit("minimum", list.low) +
                   limit("maximum", list.high) + "}]");
  }
  std::string operator()(const Text& text) const {
    return std::string(R"("type": "string")") + (text.may_be_empty ? "" : R"(, "minLength": 1)");
  }
  std::string operator()(const TextList&) const { return or_list(R"("type": "string")"); }
  std::string operator()(const Choice& choice) const {
    std::string names;
    const auto add = [&names](const std::string& name) {
      names += (names.empty() ? "" : ", ") + name;
    };
    for (const std::string& name : choice.names) add(json_text(name));
    return "\"enum\": [" + names + "]";
  }
  std::string operator()(const Size&) const { return quantity(size_units()); }
  std::string operator()(const Quantity& one) const { return quantity(one.units); }
  std::string operator()(const QuantityList& list) const { return or_list(quantity(list.units)); }
};

bool is_inside(const std::string& section, const std::string& outer) {
  return section.starts_with(outer + ".");
}

std::string indented(int depth) {
  return "\n" + std::string(static_cast<std::size_t>(2 * depth), ' ');
}

/// An object with the section's keys and the sections in it; "": the whole deck.
std::string object(const std::string& section, const std::vector<Key>& keys, int depth) {
  std::string properties;
  const auto add = [&](const std::string& name, const std::string& value) {
    properties +=
        (properties.empty() ? "" : ",") + indented(depth + 2) + json_text(name) + ": " + value;
  };
  for (const Key& key : keys) {
    if (key.section != section) continue;
    add(key.name, "{" + std::visit(Keywords{}, key.target) + ", \"default\": " + written(key) +
                      ", \"description\": " + json_text(key.meaning) + "}");
  }
  std::string meaning, last;
  for (const Section& other : sections()) {
    if (other.name == section) meaning = other.meaning;
    if (!section.empty() && !is_inside(other.name, section)) continue;
    const std::size_t start = section.empty() ? 0 : section.size() + 1;
    const std::string name = other.name.substr(start, other.name.find('.', start) - start);
    if (name == last) continue;  // sections of one section follow each other
    last = name;
    add(name, object(section.empty() ? name : section + "." + name, keys, depth + 2));
  }
  std::string text = "{" + indented(depth + 1) + "\"type\": \"object\",";
  if (!meaning.empty())
    text += indented(depth + 1) + "\"description\": " + json_text(meaning) + ",";
  return text + indented(depth + 1) + "\"additionalProperties\": false," + indented(depth + 1) +
         "\"properties\": {" + properties + indented(depth + 1) + "}" + indented(depth) + "}";
}

}  // namespace

}  // namespace deck

std::string deck_schema() {
  deck::Draft draft;
  std::string text = deck::object("", deck::keys_of(draft), 0);
  text.insert(1,
              "\n  \"$schema\": \"http://json-schema.org/draft-07/schema#\",\n"
              "  \"title\": \"Deck of deltapipe\",");
  return text + "\n";
}

}  // namespace deltapipe
