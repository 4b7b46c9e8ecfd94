// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "app/deck/deck.hpp"
#include "app/deck/keys.hpp"
#include "app/deck/toml.hpp"

namespace deltapipe {

namespace deck {

namespace {

template <class Value>
std::string toml_text(const Value& value) {
  std::ostringstream text;
  text << toml::toml_formatter{toml::value{value}, toml::format_flags::none};
  return text.str();
}

template <class Values, class Format>
std::string list_text(const Values& values, Format format) {
  std::string text = "[";
  for (const auto& value : values) text += (text.size() > 1 ? ", " : "") + format(value);
  return text + "]";
}

/// A plain number or a quoted one with its unit.
std::string quantity_text(double value, std::span<const Unit> units) {
  const std::string text = format_quantity(value, units);
  return text.find(' ') == std::string::npos ? text : "\"" + text + "\"";
}

/// The present value of a key, in TOML.
struct Write {
  std::string operator()(const Flag& flag) const { return *flag.value ? "true" : "false"; }
  std::string operator()(const Integer& integer) const {
    return std::visit([](const auto* value) { return std::to_string(*value); }, integer.value);
  }
  std::string operator()(const IntegerList& list) const {
    return list_text(*list.value, [](int value) { return std::to_string(value); });
  }
  std::string operator()(const Real& real) const { return format_real(*real.value); }
  std::string operator()(const RealList& list) const {
    return list_text(*list.value, [](double value) { return format_real(value); });
  }
  std::string operator()(const Text& text) const { return toml_text(*text.value); }
  std::string operator()(const TextList& list) const {
    return list_text(*list.value, [](const std::string& value) { return toml_text(value); });
  }
  std::string operator()(const Choice& choice) const {
    return toml_text(choice.names[choice.get()]);
  }
  std::string operator()(const Size& size) const {
    return quantity_text(static_cast<double>(*size.value), kSizeUnits);
  }
  std::string operator()(const Quantity& one) const { return quantity_text(*one.value, one.units); }
  std::string operator()(const QuantityList& list) const {
    return list_text(*list.value, [&](double value) { return quantity_text(value, list.units); });
  }
};

}  // namespace

std::string written(const Key& key) {
  return std::visit(Write{}, key.target);
}

}  // namespace deck

std::string effective_deck(const Settings& settings) {
  deck::Draft draft = deck::draft_of(settings);
  const std::vector<deck::Key> keys = deck::keys_of(draft);
  std::string text;
  for (const deck::Section& section : deck::sections()) {
    text += (text.empty() ? "[" : "\n[") + section.name + "]\n";
    for (const deck::Key& key : keys) {
      if (key.section == section.name)
        text += fmt::format("{} = {}\n", key.name, deck::written(key));
    }
  }
  return text;
}

std::vector<DeckDifference> differences(const Settings& left, const Settings& right) {
  deck::Draft left_draft = deck::draft_of(left), right_draft = deck::draft_of(right);
  const std::vector<deck::Key> left_keys = deck::keys_of(left_draft);
  const std::vector<deck::Key> right_keys = deck::keys_of(right_draft);
  std::vector<DeckDifference> found;
  for (std::size_t i = 0; i < left_keys.size(); ++i) {
    const std::string l = deck::written(left_keys[i]), r = deck::written(right_keys[i]);
    if (l != r) found.push_back({left_keys[i].full_name(), l, r});
  }
  return found;
}

bool is_listed(std::string_view key, std::span<const std::string_view> list) {
  return std::ranges::any_of(list, [key](std::string_view entry) {
    return entry.ends_with('.') ? key.starts_with(entry) : key == entry;
  });
}

std::optional<DeckDifference> first_difference(const Settings& left, const Settings& right,
                                               std::span<const std::string_view> ignored) {
  for (DeckDifference& difference : differences(left, right))
    if (!is_listed(difference.key, ignored)) return std::move(difference);
  return std::nullopt;
}

std::string deck_reference() {
  deck::Draft draft;
  const std::vector<deck::Key> keys = deck::keys_of(draft);
  std::string text;
  for (const deck::Section& section : deck::sections()) {
    text += (text.empty() ? "### `[" : "\n### `[") + section.name + "]`\n\n";
    text += section.meaning + "\n\n| key | value | default | meaning |\n|---|---|---|---|\n";
    for (const deck::Key& key : keys) {
      if (key.section != section.name) continue;
      text += fmt::format("| `{}` | {} | `{}` | {} |\n", key.name, deck::allowed(key),
                          deck::written(key), key.meaning);
    }
  }
  return text;
}

}  // namespace deltapipe
