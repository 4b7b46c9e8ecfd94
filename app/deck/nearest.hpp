// SPDX-License-Identifier: BSD-3-Clause
// What a misspelt name was most likely meant to be.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace deltapipe::deck {

/// Levenshtein distance: the fewest insertions, deletions and replacements of characters.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate with the smallest edit distance, or "" when none is within a third of the word's
/// length (at least 2): then the one that contains the word, of 3 letters or more, if it does alone
/// or all others that do begin with it.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace deltapipe::deck
