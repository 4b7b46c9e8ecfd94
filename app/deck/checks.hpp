// What a deck must satisfy as a whole, without knowing model and data.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "app/deck/keys.hpp"

namespace deltapipe::deck {

/// Where a value was given. Line and column count from 1; 0: unknown, as for an override.
struct Place {
  std::string file;
  std::size_t line = 0;
  std::size_t column = 0;
};

/// The places of the keys that were given, by full name, and of the deck itself.
struct Places {
  Place deck;
  std::map<std::string, Place> keys;
};

/// Merges the link lists of the draft into its network settings. Throws UserError.
void join_links(Draft& draft, const Places& places);

/// Throws UserError when settings contradict each other.
void check_settings(const Settings& settings, const Places& places);

}  // namespace deltapipe::deck
