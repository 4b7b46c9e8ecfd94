// SPDX-License-Identifier: BSD-3-Clause
// Where the values of a deck stand, for messages about them: also about mistakes that are found
// long after the deck was read.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>

namespace deltapipe {

/// Line and column count from 1; 0: unknown, as for an override.
struct DeckPlace {
  std::string file;  ///< or "argument 'section.key=value'"
  std::size_t line = 0;
  std::size_t column = 0;
};

struct DeckPlaces {
  DeckPlace deck;                         ///< the file as a whole
  std::map<std::string, DeckPlace> keys;  ///< of the keys that were given, by full name

  /// Place of the first of these keys that was given, else of the deck.
  const DeckPlace& of(std::span<const std::string> names) const;
};

/// Runs `action`. A UserError in it that names keys of the deck, and no file, is thrown on with
/// their place.
void with_places(const DeckPlaces& places, const std::function<void()>& action);

}  // namespace deltapipe
