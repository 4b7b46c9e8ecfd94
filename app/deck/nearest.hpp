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
/// length (at least 2): then the only one, if any, that contains a word of 4 letters or more.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace deltapipe::deck
