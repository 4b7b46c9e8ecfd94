// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/places.hpp"

#include "core/base/error.hpp"

namespace deltapipe {

const DeckPlace& DeckPlaces::of(std::span<const std::string> names) const {
  for (const std::string& name : names) {
    const auto found = keys.find(name);
    if (found != keys.end()) return found->second;
  }
  return deck;
}

void with_places(const DeckPlaces& places, const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    Mistake mistake = error.mistake();
    if (mistake.keys.empty() || !mistake.file.empty()) throw;
    const DeckPlace& place = places.of(mistake.keys);
    mistake.file = place.file;
    mistake.line = place.line;
    mistake.column = place.column;
    throw UserError(mistake);
  }
}

}  // namespace deltapipe
