// SPDX-License-Identifier: BSD-3-Clause
// Names of keys and sections, and remedies for unknown ones.
#pragma once

#include <string>
#include <vector>

#include "app/deck/keys.hpp"
#include "app/deck/places.hpp"

namespace deltapipe::deck {

/// Returns the key of that name in the section; null: no such key.
const Key* find_key(const std::vector<Key>& keys, const std::string& section,
                    const std::string& name);
/// Returns true if it is a section or contains one.
bool is_section(const std::string& name);
/// Returns the full names of the keys of that name in all sections, as "a.x' or 'b.x"; "" without
/// one.
std::string full_names(const std::vector<Key>& keys, const std::string& name);

/// Returns "did you mean 'BEST'?"
std::string question(const std::string& best);

// Throw the UserError of an unknown name.
[[noreturn]] void refuse_section(const std::string& name, const DeckPlace& place);
[[noreturn]] void refuse_key(const std::vector<Key>& keys, const std::string& section,
                             const std::string& name, const DeckPlace& place);

}  // namespace deltapipe::deck
