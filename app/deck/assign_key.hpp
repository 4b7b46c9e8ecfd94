// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "app/deck/keys.hpp"
#include "app/deck/places.hpp"
#include "app/deck/toml.hpp"

namespace deltapipe::deck {

/// Sets a key from a TOML value; lists also accept a single value. Throws UserError for a value of
/// another type or out of range.
void assign(const Key& key, const toml::node& node, const DeckPlace& place);

}  // namespace deltapipe::deck
