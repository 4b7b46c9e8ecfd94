// SPDX-License-Identifier: BSD-3-Clause
// Mistakes in a deck, with their place in its file.
#pragma once

#include <string>

#include "app/deck/places.hpp"
#include "app/deck/toml.hpp"

namespace deltapipe::deck {

DeckPlace place_in(const std::string& file, const toml::source_region& source);

/// Returns a value as the user may recognise it, cut when long.
std::string shown(const toml::node& node);

/// Throws the UserError of a mistake.
[[noreturn]] void refuse(const DeckPlace& place, std::string what, std::string value = {},
                         std::string remedy = {});

}  // namespace deltapipe::deck
