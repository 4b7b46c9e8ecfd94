// SPDX-License-Identifier: BSD-3-Clause
// TOML of decks and of overrides on the command line.
#pragma once

#include <string>

#include "app/deck/keys.hpp"
#include "app/deck/places.hpp"
#include "app/deck/toml.hpp"

namespace deltapipe::deck {

/// Parses the text of a deck. Throws UserError with the place and the remedy.
toml::table parse_toml(const std::string& text, const std::string& file);

/// Returns a table whose only entry, "value", is the value of an override: TOML, or a bare word for
/// a string.
toml::table value_of_override(const std::string& text, const Key& key, const DeckPlace& place);

}  // namespace deltapipe::deck
