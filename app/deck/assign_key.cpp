// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/assign_key.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "app/deck/deck_mistakes.hpp"
#include "app/deck/units.hpp"

namespace deltapipe::deck {

namespace {

class Assign {
 public:
  Assign(const Key& key, const toml::node& node, DeckPlace place)
      : key_(key), node_(node), place_(std::move(place)) {}

  void operator()(const Flag& flag) const {
    const auto* value = node_.as_boolean();
    if (value == nullptr) wrong_type(node_);
    *flag.value = value->get();
  }

  void operator()(const Integer& integer) const {
    const std::int64_t value = checked(node_, integer.low, integer.high);
    std::visit(
        [value](auto* target) { *target = static_cast<std::decay_t<decltype(*target)>>(value); },
        integer.value);
  }

  void operator()(const IntegerList& list) const {
    *list.value = elements<int>([&](const toml::node& element) {
      return static_cast<int>(checked(element, list.low, list.high));
    });
  }

  void operator()(const Real& real) const {
    const double value = number(node_);
    const bool above = real.low_open ? value > real.low : value >= real.low;
    const bool below = real.high_open ? value < real.high : value <= real.high;
    if (!(real.or_zero && value == 0) && (!above || !below)) out_of_range(node_);
    *real.value = value;
  }

  void operator()(const RealList& list) const {
    *list.value = elements<double>([&](const toml::node& element) {
      const double value = number(element);
      if (value != 0 && !(value >= list.low && value <= list.high)) out_of_range(element);
      return value;
    });
  }

  void operator()(const Text& text) const {
    const auto* value = node_.as_string();
    if (value == nullptr) wrong_type(node_);
    if (value->get().empty() && !text.may_be_empty) out_of_range(node_);
    *text.value = value->get();
  }

  void operator()(const TextList& list) const {
    *list.value = elements<std::string>([&](const toml::node& element) {
      const auto* value = element.as_string();
      if (value == nullptr) wrong_type(element);
      return value->get();
    });
  }

  void operator()(const Choice& choice) const {
    const std::optional<std::string> value = name_in(node_);
    if (!value) wrong_type(node_);
    for (std::size_t i = 0; i < choice.names.size(); ++i) {
      if (choice.names[i] == *value) return choice.set(i);
    }
    refuse(place_, "unknown value of " + key_.full_name(), shown(node_), "use " + allowed(key_));
  }

  void operator()(const Size& size) const {
    const double bytes = quantity(node_, kSizeUnits, 0, std::numeric_limits<double>::max());
    constexpr double limit = 9007199254740992.0;  // 2^53: above it doubles skip integers
    if (bytes != std::floor(bytes) || bytes > limit) out_of_range(node_);
    *size.value = static_cast<std::uint64_t>(bytes);
  }

  void operator()(const Quantity& one) const {
    *one.value = quantity(node_, one.units, 0, one.high);
  }

  void operator()(const QuantityList& list) const {
    *list.value = elements<double>([&](const toml::node& element) {
      return quantity(element, list.units, list.low, list.high);
    });
  }

 private:
  /// Returns the name of a choice. A truth value is refused as an unknown name.
  static std::optional<std::string> name_in(const toml::node& node) {
    if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
    const auto* text = node.as_string();
    return text == nullptr ? std::nullopt : std::optional<std::string>(text->get());
  }

  /// The values of all elements; a value alone is a list of one.
  template <class T, class ValueOf>
  std::vector<T> elements(const ValueOf& value_of) const {
    const toml::array* array = node_.as_array();
    if (array == nullptr) return {value_of(node_)};
    std::vector<T> values;
    for (const toml::node& element : *array) values.push_back(value_of(element));
    return values;
  }

  double number(const toml::node& node) const {
    const std::optional<double> value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value) wrong_type(node);
    return *value;
  }

  std::int64_t checked(const toml::node& node, std::int64_t low, std::int64_t high) const {
    const auto* value = node.as_integer();
    if (value == nullptr) wrong_type(node);
    if (value->get() < low || value->get() > high) out_of_range(node);
    return value->get();
  }

  /// 0, or within the limits.
  double quantity(const toml::node& node, std::span<const Unit> units, double low,
                  double high) const {
    const toml::value<std::string>* text = node.as_string();
    if (text == nullptr && !node.is_number()) wrong_type(node);
    const double value = text == nullptr ? node.value<double>().value_or(-1)
                                         : parse_quantity(text->get(), units).value_or(-1);
    if (value != 0 && !(value >= low && value <= high)) out_of_range(node);
    return value;
  }

  /// An element's own place when it is in a file, else that of the whole value.
  DeckPlace place_of(const toml::node& node) const {
    return node.source().begin.line > 0 && place_.line > 0 ? place_in(place_.file, node.source())
                                                           : place_;
  }

  [[noreturn]] void wrong_type(const toml::node& node) const {
    refuse(place_of(node), key_.full_name() + " has the wrong type", shown(node),
           "use " + allowed(key_));
  }

  [[noreturn]] void out_of_range(const toml::node& node) const {
    refuse(place_of(node), key_.full_name() + " is out of range", shown(node),
           "use " + allowed(key_));
  }

  const Key& key_;
  const toml::node& node_;
  DeckPlace place_;
};

}  // namespace

void assign(const Key& key, const toml::node& node, const DeckPlace& place) {
  std::visit(Assign(key, node, place), key.target);
}

}  // namespace deltapipe::deck
