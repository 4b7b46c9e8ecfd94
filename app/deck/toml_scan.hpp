// SPDX-License-Identifier: BSD-3-Clause
// Texts that toml++ must not see.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace deltapipe::deck {

/// No deck needs more than three.
inline constexpr int max_nesting = 16;

struct TomlFlaw {
  enum Kind {
    nesting,    ///< arrays, inline tables or the parts of a dotted key go beyond max_nesting
    characters  ///< one outside ASCII that is in no string and no comment, or escaped
  } kind = nesting;
  std::size_t line = 0;  ///< counted from 1
};

/// The first place where toml++ 3.3 would misbehave instead of refusing: it follows nesting by
/// recursion, dotted keys without end, and looks characters outside ASCII up in tables that have
/// undefined behaviour for some, in places where TOML 1.0 does not allow it: outside of strings and
/// comments (but a quote inside of a number starts no string) and behind a backslash. Where TOML
/// has them and toml++ fails, at the start of a line that a backslash joins, they become escapes in
/// `toml`.
std::optional<TomlFlaw> make_safe(std::string& toml);

}  // namespace deltapipe::deck
