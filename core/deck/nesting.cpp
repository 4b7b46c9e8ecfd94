#include "core/deck/nesting.hpp"

#include <algorithm>

namespace deltapipe::deck {

namespace {

/// The rest of `toml` behind the string that it starts with. A string that does not end takes the
/// whole rest: toml++ refuses it, and what comes after it does not matter.
std::string_view behind_string(std::string_view toml) {
  const char quote = toml[0];
  const std::string_view three = quote == '"' ? "\"\"\"" : "'''";
  const bool is_long = toml.starts_with(three);
  const std::string_view end = three.substr(0, is_long ? 3 : 1);
  for (toml.remove_prefix(end.size()); !toml.empty(); toml.remove_prefix(1)) {
    if (toml.starts_with(end)) {
      toml.remove_prefix(end.size());
      // A long string may have one or two quotes right before its end.
      for (int i = 0; is_long && i < 2 && toml.starts_with(quote); ++i) toml.remove_prefix(1);
      return toml;
    }
    if (toml[0] == '\n' && !is_long) break;
    if (toml[0] == '\\' && quote == '"' && toml.size() > 1) toml.remove_prefix(1);
  }
  return {};
}

std::string_view behind_comment(std::string_view toml) {
  return toml.substr(std::min(toml.find('\n'), toml.size()));
}

}  // namespace

std::size_t line_nested_too_deeply(std::string_view toml) {
  int open = 0;  // brackets
  int dots = 0;  // of one key
  for (std::string_view rest = toml; !rest.empty();) {
    const char c = rest[0];
    if (c == '"' || c == '\'') {
      rest = behind_string(rest);
      continue;
    }
    if (c == '#') {
      rest = behind_comment(rest);
      continue;
    }
    if (c == '[' || c == '{') ++open;
    if ((c == ']' || c == '}') && open > 0) --open;
    if (c == '.') ++dots;
    if (c == '\n' || c == '=' || c == ',' || c == '[' || c == '{') dots = 0;
    if (open > max_nesting || dots > max_nesting) {
      const auto end = toml.end() - static_cast<std::ptrdiff_t>(rest.size());
      return 1 + static_cast<std::size_t>(std::count(toml.begin(), end, '\n'));
    }
    rest.remove_prefix(1);
  }
  return 0;
}

}  // namespace deltapipe::deck
