// Decks that are nested too deeply for toml++.
#pragma once

#include <cstddef>
#include <string_view>

namespace deltapipe::deck {

/// No deck needs more than three.
inline constexpr int max_nesting = 16;

/// The line (from 1) where arrays, inline tables or the parts of a dotted key go deeper than
/// max_nesting; 0: nowhere. toml++ follows them by recursion, dotted keys without end.
std::size_t line_nested_too_deeply(std::string_view toml);

}  // namespace deltapipe::deck
