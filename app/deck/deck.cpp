// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/deck.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

#include "app/deck/checks.hpp"
#include "app/deck/keys.hpp"
#include "app/deck/nearest.hpp"
#include "app/deck/places.hpp"
#include "app/deck/toml.hpp"
#include "app/deck/toml_scan.hpp"
#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/base/utf8.hpp"
#include "core/codec/algorithms/recommended.hpp"
#include "core/files/input_file.hpp"

namespace deltapipe {

namespace deck {

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
  std::ostringstream text;
  node.visit([&](const auto& value) {
    text << toml::toml_formatter{value, toml::format_flags::quote_dates_and_times};
  });
  return text.str();
}

/// The value as the user may recognise it, cut when long.
std::string shown(const toml::node& node) {
  return node.is_table() ? "a table" : printable(toml_of(node), 57);
}

DeckPlace place_in(const std::string& file, const toml::source_region& source) {
  return {file, source.begin.line, source.begin.column};
}

[[noreturn]] void refuse(const DeckPlace& place, std::string what, std::string value = {},
                         std::string remedy = {}) {
  throw UserError({.what = std::move(what),
                   .file = place.file,
                   .line = place.line,
                   .column = place.column,
                   .value = std::move(value),
                   .remedy = std::move(remedy)});
}

/// Sets one key from one TOML value; lists also take a single value.
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
    std::vector<int> values;
    for_each_element([&](const toml::node& element) {
      values.push_back(static_cast<int>(checked(element, list.low, list.high)));
    });
    *list.value = values;
  }

  void operator()(const Real& real) const {
    const std::optional<double> value = node_.is_number() ? node_.value<double>() : std::nullopt;
    if (!value) wrong_type(node_);
    const bool above = real.low_open ? *value > real.low : *value >= real.low;
    const bool below = real.high_open ? *value < real.high : *value <= real.high;
    if (!(real.or_zero && *value == 0) && (!above || !below)) out_of_range(node_);
    *real.value = *value;
  }

  void operator()(const RealList& list) const {
    std::vector<double> values;
    for_each_element([&](const toml::node& element) {
      const std::optional<double> value =
          element.is_number() ? element.value<double>() : std::nullopt;
      if (!value) wrong_type(element);
      if (*value != 0 && !(*value >= list.low && *value <= list.high)) out_of_range(element);
      values.push_back(*value);
    });
    *list.value = values;
  }

  void operator()(const Text& text) const {
    const auto* value = node_.as_string();
    if (value == nullptr) wrong_type(node_);
    if (value->get().empty() && !text.may_be_empty) out_of_range(node_);
    *text.value = value->get();
  }

  void operator()(const TextList& list) const {
    std::vector<std::string> values;
    for_each_element([&](const toml::node& element) {
      const auto* value = element.as_string();
      if (value == nullptr) wrong_type(element);
      values.push_back(value->get());
    });
    *list.value = values;
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
    const double bytes = quantity(node_, size_units(), 0, std::numeric_limits<double>::max());
    constexpr double limit = 9007199254740992.0;  // 2^53: above it doubles skip integers
    if (bytes != std::floor(bytes) || bytes > limit) out_of_range(node_);
    *size.value = static_cast<std::uint64_t>(bytes);
  }

  void operator()(const Quantity& one) const {
    *one.value = quantity(node_, one.units, 0, one.high);
  }

  void operator()(const QuantityList& list) const {
    std::vector<double> values;
    for_each_element([&](const toml::node& element) {
      values.push_back(quantity(element, list.units, list.low, list.high));
    });
    *list.value = values;
  }

 private:
  /// Returns the name of a choice. A truth value is refused as an unknown name.
  static std::optional<std::string> name_in(const toml::node& node) {
    if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
    const auto* text = node.as_string();
    return text == nullptr ? std::nullopt : std::optional<std::string>(text->get());
  }

  template <class Function>
  void for_each_element(Function function) const {
    const toml::array* array = node_.as_array();
    if (array == nullptr) return function(node_);
    for (const toml::node& element : *array) function(element);
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

const Key* find_key(const std::vector<Key>& keys, const std::string& section,
                    const std::string& name) {
  for (const Key& key : keys) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

bool is_section(const std::string& name) {
  for (const Section& section : sections()) {
    if (section.name == name || section.name.starts_with(name + ".")) return true;
  }
  return false;
}

[[noreturn]] void unknown_section(const std::string& name, const DeckPlace& place) {
  std::vector<std::string> names;
  std::string all;
  for (const Section& section : sections()) {
    names.push_back(section.name);
    all += (all.empty() ? "[" : ", [") + section.name + "]";
  }
  const std::string best = nearest(name, names);
  refuse(place, "unknown section [" + name + "]", {},
         best.empty() ? "the sections are " + all : "did you mean [" + best + "]?");
}

std::string question(const std::string& best) {
  return "did you mean '" + best + "'?";
}

/// Full names of the keys of that name in all sections: "a.x' or 'b.x"; "" without one.
std::string full_names(const std::vector<Key>& keys, const std::string& name) {
  std::string names;
  for (const Key& key : keys)
    if (key.name == name) names += (names.empty() ? "" : "' or '") + key.full_name();
  return names;
}

/// Remedy for an unknown key: the nearest in its section, the same name elsewhere, or the list.
std::string remedy_for(const std::vector<Key>& keys, const std::string& section,
                       const std::string& name) {
  std::vector<std::string> siblings;
  std::string all;
  for (const Key& key : keys) {
    if (key.section != section) continue;
    siblings.push_back(key.name);
    all += (all.empty() ? "" : ", ") + key.name;
  }
  for (const Section& other : sections()) {
    if (other.name.starts_with(section + ".")) {
      siblings.push_back(other.name.substr(section.size() + 1));
    }
  }
  if (const std::string named = full_names(keys, name); !named.empty()) return question(named);
  if (const std::string best = nearest(name, siblings); !best.empty()) return question(best);
  // Keys of other sections are farther from what was meant than those here that contain the name.
  const bool is_part = std::any_of(siblings.begin(), siblings.end(), [&](const std::string& other) {
    return other.find(name) != std::string::npos;
  });
  std::vector<std::string> names;
  constexpr std::size_t kShortestElsewhere = 6;  // shorter names are near to too many
  if (!is_part && name.size() >= kShortestElsewhere)
    for (const Key& key : keys) names.push_back(key.name);
  if (const std::string best = nearest(name, names); !best.empty()) {
    for (const Key& key : keys) {
      if (key.name == best) return question(key.full_name());
    }
  }
  return all.empty() ? "it has only sections" : "the keys of [" + section + "] are " + all;
}

[[noreturn]] void unknown_key(const std::vector<Key>& keys, const std::string& section,
                              const std::string& name, const DeckPlace& place) {
  refuse(place, "unknown key '" + name + "' in [" + section + "]", {},
         remedy_for(keys, section, name));
}

struct Entry {
  const toml::key* key;
  const toml::node* node;
};

/// In the order of the file, so that its first mistake is the one that is reported.
std::vector<Entry> entries_of(const toml::table& table) {
  std::vector<Entry> entries;
  for (auto&& [key, node] : table) entries.push_back({&key, &node});
  std::ranges::stable_sort(entries, [](const Entry& a, const Entry& b) {
    const auto left = a.key->source().begin, right = b.key->source().begin;
    return std::pair(left.line, left.column) < std::pair(right.line, right.column);
  });
  return entries;
}

/// Sets the keys of a section and of the sections in it.
void read_section(const toml::table& table, const std::string& section,
                  const std::vector<Key>& keys, const std::string& file, DeckPlaces& places) {
  for (const auto& [toml_key, value] : entries_of(table)) {
    const toml::node& node = *value;
    const std::string name(toml_key->str());
    const std::string full = section.empty() ? name : section + "." + name;
    const DeckPlace key_place = place_in(file, toml_key->source());
    if (const Key* key = find_key(keys, section, name)) {
      std::visit(Assign(*key, node, place_in(file, node.source())), key->target);
      places.keys[full] = key_place;
    } else if (is_section(full)) {
      if (!node.is_table())
        refuse(key_place, "'" + full + "' is a section", shown(node),
               "write [" + full + "] and its keys below");
      read_section(*node.as_table(), full, keys, file, places);
    } else if (section.empty() || node.is_table()) {
      unknown_section(full, key_place);
    } else {
      unknown_key(keys, section, name, key_place);
    }
  }
}

[[noreturn]] void refuse_flaw(const TomlFlaw& flaw, DeckPlace place) {
  if (place.line > 0) place.line = flaw.line;
  if (flaw.kind == TomlFlaw::nesting) {
    refuse(place, "nested deeper than " + std::to_string(max_nesting) + " levels", {},
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

toml::table parse_toml(const std::string& text, const std::string& file) {
  std::string safe = text;
  if (const auto flaw = make_safe(safe)) refuse_flaw(*flaw, {file, 1, 0});
  try {
    return toml::parse(safe, file);
  } catch (const toml::parse_error& error) {
    const std::string word = bare_word_at(text, error.source().begin.line);
    if (!word.empty())
      refuse(place_in(file, error.source()), "a text without quotes", word,
             "put it in quotes: \"" + word + "\"");
    refuse(place_in(file, error.source()), "not valid TOML: " + std::string(error.description()));
  } catch (const TomlAssertion&) {
    refuse({file}, "not valid TOML", {}, "a section's name may hold A-Z, a-z, 0-9, _ and -");
  }
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

/// The value of an override: TOML, or a bare word that stands for a string.
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

void apply_override(const std::string& argument, const std::vector<Key>& keys, DeckPlaces& places) {
  const DeckPlace place{"argument '" + printable(argument, 200) + "'"};
  const std::size_t equals = argument.find('=');
  if (equals == std::string::npos) {
    refuse(place, "not an override", {}, "write section.key=value");
  }
  const std::string full = argument.substr(0, equals);
  const std::size_t dot = full.rfind('.');
  const std::string section = dot == std::string::npos ? "" : full.substr(0, dot);
  const std::string name = dot == std::string::npos ? full : full.substr(dot + 1);
  const Key* key = find_key(keys, section, name);
  if (key == nullptr && is_section(full)) {
    refuse(place, "[" + full + "] is a section", {}, "name a key in it");
  }
  if (key == nullptr && section.empty()) {
    const std::string named = full_names(keys, name);
    refuse(place, "'" + full + "' names no key of a section", {},
           named.empty() ? "write section.key=value" : question(named));
  }
  if (key == nullptr && !is_section(section)) unknown_section(section, place);
  if (key == nullptr) unknown_key(keys, section, name, place);

  const toml::table table = value_of_override(argument.substr(equals + 1), *key, place);
  std::visit(Assign(*key, *table.get("value"), place), key->target);
  places.keys[full] = place;
}

bool sets(const std::string& argument, const std::string& key) {
  return argument.starts_with(key + "=");
}

/// An override of [network] counts for both directions, whatever the deck says of one.
void clear_directions(Draft& draft, const std::string& argument) {
  for (Draft::Links* links : {&draft.forward, &draft.backward}) {
    if (sets(argument, "network.bandwidth")) links->bits_per_second.clear();
    if (sets(argument, "network.latency")) links->latency_seconds.clear();
  }
}

/// A model on the command line takes the place of the deck's new one, whose tokenizer it does not
/// share: the model's directory or tokenizer.path has its own.
void replace_new_model(Settings& settings, const std::vector<std::string>& overrides) {
  const auto given = [&](const std::string& key) {
    return std::ranges::any_of(overrides, [&](const auto& o) { return sets(o, key); });
  };
  if (settings.model.path.empty() || !given("model.path")) return;
  if (!given("tokenizer.train_vocabulary")) settings.tokenizer.train_vocabulary = 0;
}

/// Names of files are bytes to the system, but a deck is UTF-8; and no name or text holds a NUL.
void check_text(const std::vector<Key>& keys, const DeckPlaces& places) {
  for (const Key& key : keys) {
    const auto place = places.keys.find(key.full_name());
    if (place == places.keys.end()) continue;
    std::vector<std::string> texts;
    if (const auto* text = std::get_if<Text>(&key.target)) texts = {*text->value};
    if (const auto* list = std::get_if<TextList>(&key.target)) texts = *list->value;
    for (const std::string& text : texts) {
      if (first_invalid_utf8(text) != text.size()) {
        refuse(place->second, key.full_name() + " is not UTF-8 text", text);
      }
      if (text.find('\0') != std::string::npos) {
        refuse(place->second, key.full_name() + " holds a NUL character", text);
      }
    }
  }
}

/// The deck's values and then the overrides', in place of those of the draft.
void read_draft(const toml::table& table, const std::vector<std::string>& overrides, Draft& draft,
                DeckPlaces& places) {
  const std::vector<Key> keys = keys_of(draft);
  read_section(table, "", keys, places.deck.file, places);
  for (const std::string& argument : overrides) {
    apply_override(argument, keys, places);
    clear_directions(draft, argument);
  }
  check_text(keys, places);
}

/// A rate or an error is held by steps of the RMS: a direction that has one, and no step of its
/// own, has the recommended settings beside its codec.
bool needs_steps(const CodecSettings& codec, const RateSettings& rate) {
  return quantizes_all(codec) && codec.rms_step == 0 && (rate.has_bits() || rate.target_error > 0);
}

/// Sets the recommended settings of a direction. Bits may be held instead of errors.
void set_preset(Direction direction, const RateSettings& own_rate, double error,
                CodecSettings& codec, RateSettings& rate) {
  codec = recommended_settings(direction);
  if (own_rate.has_bits()) return;
  rate.target_error =
      own_rate.target_error > 0 ? own_rate.target_error : recommended_target(direction, error);
  if (direction == Direction::forward)
    codec.first_visit_step = first_visit_step_of(rate.target_error);
}

/// Keys of earlier versions that nothing depends on any more.
constexpr std::array<std::pair<std::string_view, std::string_view>, 1> kRetiredKeys = {
    {{"checkpoint", "resume"}}};

void remove_retired_keys(toml::table& table) {
  for (const auto& [section, name] : kRetiredKeys)
    if (toml::table* const keys = table[section].as_table()) keys->erase(name);
}

Settings settings_of(const toml::table& table, const std::string& name,
                     const std::vector<std::string>& overrides, DeckPlaces* where) {
  Draft draft;
  DeckPlaces places;
  places.deck.file = name;
  read_draft(table, overrides, draft, places);
  const Draft read = draft;
  const Settings& own = read.settings;
  const bool forward = read.forward_is_auto || needs_steps(own.forward, own.forward_rate);
  const bool backward = read.backward_is_auto || needs_steps(own.backward, own.backward_rate);
  if (forward || backward) {
    // Settings of the deck and the overrides take precedence: they are read again over the preset.
    draft = {};
    Settings& s = draft.settings;
    if (forward)
      set_preset(Direction::forward, own.forward_rate, own.auto_error, s.forward, s.forward_rate);
    if (backward)
      set_preset(Direction::backward, own.backward_rate, own.auto_error, s.backward,
                 s.backward_rate);
    read_draft(table, overrides, draft, places);
  }
  replace_new_model(draft.settings, overrides);
  with_places(places, [&] {
    join_links(draft);
    check_settings(draft.settings);
  });
  if (where != nullptr) *where = std::move(places);
  return draft.settings;
}

}  // namespace

}  // namespace deck

Settings parse_deck(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides, DeckPlaces* where) {
  return deck::settings_of(deck::parse_toml(text, name), name, overrides, where);
}

Settings parse_stored_deck(const std::string& text, const std::string& name) {
  try {
    toml::table table = deck::parse_toml(text, name);
    deck::remove_retired_keys(table);
    return deck::settings_of(table, name, {}, nullptr);
  } catch (const UserError& error) {
    // Nobody edits a stored deck, so that a remedy for a mistake in it would mislead.
    Mistake mistake = error.mistake();
    mistake.remedy = "another version of deltapipe wrote it: use that version, or start a new run";
    throw UserError(mistake);
  }
}

Settings read_deck(const std::string& path, const std::vector<std::string>& overrides,
                   DeckPlaces* where) {
  return parse_deck(read_text_file(path, file_limit::deck), path, overrides, where);
}

}  // namespace deltapipe
