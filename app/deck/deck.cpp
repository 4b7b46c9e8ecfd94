// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/deck.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "app/deck/assign_key.hpp"
#include "app/deck/checks.hpp"
#include "app/deck/deck_mistakes.hpp"
#include "app/deck/deck_toml.hpp"
#include "app/deck/keys.hpp"
#include "app/deck/places.hpp"
#include "app/deck/unknown_names.hpp"
#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/base/utf8.hpp"
#include "core/codec/algorithms/recommended.hpp"
#include "core/files/input_file.hpp"

namespace deltapipe {

namespace deck {

namespace {

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
      assign(*key, node, place_in(file, node.source()));
      places.keys[full] = key_place;
    } else if (is_section(full)) {
      if (!node.is_table())
        refuse(key_place, "'" + full + "' is a section", shown(node),
               "write [" + full + "] and its keys below");
      read_section(*node.as_table(), full, keys, file, places);
    } else if (section.empty() || node.is_table()) {
      refuse_section(full, key_place);
    } else {
      refuse_key(keys, section, name, key_place);
    }
  }
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
  if (key == nullptr && !is_section(section)) refuse_section(section, place);
  if (key == nullptr) refuse_key(keys, section, name, place);

  const toml::table table = value_of_override(argument.substr(equals + 1), *key, place);
  assign(*key, *table.get("value"), place);
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
