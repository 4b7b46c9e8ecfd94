// SPDX-License-Identifier: BSD-3-Clause
// The deck: a TOML file that says what a run does. Every key, its range and its meaning stand once,
// in keys.hpp and keys/; docs/deck.md and inputs/ show them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/deck/places.hpp"
#include "app/deck/settings.hpp"

namespace deltapipe {

/// Reads a deck and then the overrides "section.key=value" (values in TOML; a bare word is a
/// string), and checks all that can be known without the model and the data. Throws UserError that
/// names file, line and column, or the override, of the first mistake. `where`: gets the places of
/// the values that were given, for mistakes that show later.
Settings read_deck(const std::string& path, const std::vector<std::string>& overrides = {},
                   DeckPlaces* where = nullptr);

/// As read_deck, for a deck's text; `name` stands for the file in messages.
Settings parse_deck(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides = {}, DeckPlaces* where = nullptr);

/// As parse_deck, for a deck that a run file or a checkpoint has: one of an earlier version may
/// have keys that were removed since.
Settings parse_stored_deck(const std::string& text, const std::string& name);

/// The complete deck, defaults included, as TOML that reads back to the same settings.
std::string effective_deck(const Settings& settings);

/// A key whose values differ, both in TOML.
struct DeckDifference {
  std::string key;  ///< "training.optimizer.learning_rate"
  std::string left;
  std::string right;
};

/// All keys at which the settings differ, in the order of a written deck.
std::vector<DeckDifference> differences(const Settings& left, const Settings& right);
/// Returns true if a list names a key: in full, or by its section with the dot after it.
bool is_listed(std::string_view key, std::span<const std::string_view> list);
/// The first key at which the settings differ, in the order of a written deck; none when they are
/// the same but for the keys and sections that `ignored` lists.
std::optional<DeckDifference> first_difference(const Settings& left, const Settings& right,
                                               std::span<const std::string_view> ignored = {});

/// A JSON schema of decks, made of the same table of keys.
std::string deck_schema();

/// All keys with type, range, default and meaning as Markdown tables, one per section.
std::string deck_reference();

}  // namespace deltapipe
