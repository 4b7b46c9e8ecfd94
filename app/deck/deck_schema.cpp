// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "app/deck/deck.hpp"
#include "app/deck/keys.hpp"
#include "core/files/json.hpp"

namespace deltapipe {

namespace deck {

namespace {

OrderedJson any_of(OrderedJson one, OrderedJson other) {
  return {{"anyOf", OrderedJson::array({std::move(one), std::move(other)})}};
}

/// A value, or a list of such values.
OrderedJson or_list(const OrderedJson& one) {
  return any_of(one, {{"type", "array"}, {"items", one}});
}

/// `name`: "minimum" or "exclusiveMinimum" and so on.
void add_limit(OrderedJson& json, const char* name, double value) {
  if (std::isfinite(value)) json[name] = OrderedJson::parse(format_number(value));
}

OrderedJson integer(std::int64_t low, std::int64_t high) {
  return {{"type", "integer"}, {"minimum", low}, {"maximum", high}};
}

OrderedJson in_range(const Real& real) {
  OrderedJson json = {{"type", "number"}};
  add_limit(json, real.low_open ? "exclusiveMinimum" : "minimum", real.low);
  add_limit(json, real.high_open ? "exclusiveMaximum" : "maximum", real.high);
  return real.or_zero ? any_of({{"const", 0}}, std::move(json)) : json;
}

OrderedJson quantity(std::span<const Unit> units) {
  std::string names;
  for (const Unit& unit : units) names += (names.empty() ? "" : "|") + std::string(unit.name);
  const std::string pattern = "^ *[0-9.]+([eE][-+]?[0-9]+)? *(" + names + ")?$";
  return any_of({{"type", "number"}, {"minimum", 0}}, {{"type", "string"}, {"pattern", pattern}});
}

/// The keywords that say what a key may hold.
struct Keywords {
  OrderedJson operator()(const Flag&) const { return {{"type", "boolean"}}; }
  OrderedJson operator()(const Integer& i) const { return integer(i.low, i.high); }
  OrderedJson operator()(const IntegerList& list) const {
    return or_list(integer(list.low, list.high));
  }
  OrderedJson operator()(const Real& real) const { return in_range(real); }
  OrderedJson operator()(const RealList& list) const {
    return or_list(
        in_range({.value = nullptr, .low = list.low, .high = list.high, .or_zero = true}));
  }
  OrderedJson operator()(const Text& text) const {
    OrderedJson json = {{"type", "string"}};
    if (!text.may_be_empty) json["minLength"] = 1;
    return json;
  }
  OrderedJson operator()(const TextList&) const { return or_list({{"type", "string"}}); }
  OrderedJson operator()(const Choice& choice) const { return {{"enum", choice.names}}; }
  OrderedJson operator()(const Size&) const { return quantity(kSizeUnits); }
  OrderedJson operator()(const Quantity& one) const { return quantity(one.units); }
  OrderedJson operator()(const QuantityList& list) const { return or_list(quantity(list.units)); }
};

bool is_inside(const std::string& section, const std::string& outer) {
  return section.starts_with(outer + ".");
}

/// An object with the section's keys and the sections in it; "": the whole deck.
OrderedJson object(const std::string& section, const std::vector<Key>& keys) {
  OrderedJson json = {{"type", "object"}}, properties;
  for (const Key& key : keys) {
    if (key.section != section) continue;
    OrderedJson& property = properties[key.name] = std::visit(Keywords{}, key.target);
    property["default"] = OrderedJson::parse(written(key));
    property["description"] = key.meaning;
  }
  for (const Section& other : sections()) {
    if (other.name == section) json["description"] = other.meaning;
    if (!section.empty() && !is_inside(other.name, section)) continue;
    const std::size_t start = section.empty() ? 0 : section.size() + 1;
    const std::string name = other.name.substr(start, other.name.find('.', start) - start);
    if (!properties.contains(name))
      properties[name] = object(section.empty() ? name : section + "." + name, keys);
  }
  json["additionalProperties"] = false;
  json["properties"] = std::move(properties);
  return json;
}

}  // namespace

}  // namespace deck

std::string deck_schema() {
  deck::Draft draft;
  OrderedJson schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                        {"title", "Deck of deltapipe"}};
  schema.update(deck::object("", deck::keys_of(draft)));
  return schema.dump(2) + "\n";
}

}  // namespace deltapipe
