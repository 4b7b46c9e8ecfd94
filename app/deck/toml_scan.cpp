// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/toml_scan.hpp"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <vector>

#include "core/base/utf8.hpp"

namespace deltapipe::deck {

namespace {

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

std::string_view behind_space(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

/// The backslash before `escaped` joins two lines.
bool joins_lines(std::string_view behind_backslash, std::string_view escaped) {
  return behind_backslash.substr(0, behind_backslash.size() - escaped.size()).find('\n') !=
         std::string_view::npos;
}

/// The rest of `toml` behind the string that it starts with, or from a letter outside ASCII on that
/// a backslash in it would escape. A string that does not end takes the whole rest: toml++ refuses
/// it, and what comes after it does not matter. Such letters that only start a joined line are
/// added to `joined`.
std::string_view behind_string(std::string_view toml, std::vector<const char*>& joined) {
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
    if (toml[0] != '\\' || quote != '"' || toml.size() < 2) continue;
    const std::string_view escaped = behind_space(toml.substr(1));
    if (!escaped.empty() && !is_ascii(escaped[0])) {
      char32_t code_point = 0;
      const bool is_letter = utf8_sequence(escaped, code_point) > 0;
      if (!is_long || !is_letter || !joins_lines(toml.substr(1), escaped)) return escaped;
      joined.push_back(escaped.data());
    }
    toml.remove_prefix(1);
  }
  return {};
}

std::string_view behind_comment(std::string_view toml) {
  return toml.substr(std::min(toml.find('\n'), toml.size()));
}

/// Context of a character in a document, as far as it decides if a quote starts a string.
class Place {
 public:
  /// The next character, outside of strings and comments.
  void pass(char c) {
    // Not by a space: toml++ reads on behind one that may be in a date.
    if (in_value_ && std::string_view("\r\n,]}#").find(c) != std::string_view::npos)
      in_value_ = false;
    if (in_value_) return;
    if (expects_value_ && begins_value(c)) {
      expects_value_ = c == '[';
      in_value_ = c != '[' && c != '{';
      if (!in_value_) open(c == '[' ? Bracket::array : Bracket::table);
      in_word_ = false;
      return;
    }
    in_word_ = std::string_view(" \t\r\n=,.[{").find(c) == std::string_view::npos;
    if (c == '[' || c == '{') open(Bracket::other);
    if (c == ']' || c == '}') {
      if (!brackets_.empty()) brackets_.pop_back();
      expects_value_ = false;
    }
    if (c == '.') ++dots_;
    if (c == '\n' || c == '=' || c == ',') dots_ = 0;
    if (c == '=') expects_value_ = true;
    if (c == ',') expects_value_ = !brackets_.empty() && brackets_.back() == Bracket::array;
    if (c == '\n' && brackets_.empty()) expects_value_ = false;
  }
  void pass_string() { expects_value_ = in_word_ = false; }
  /// A quote inside of a word starts no string: toml++ reads the word to its end and refuses it.
  bool starts_string(char c) const { return (c == '"' || c == '\'') && !in_word_ && !in_value_; }
  bool is_too_deep() const {
    return brackets_.size() > static_cast<std::size_t>(max_nesting) || dots_ > max_nesting;
  }

 private:
  enum class Bracket { array, table, other };

  static bool begins_value(char c) {
    return std::string_view(" \t\r\n]},#").find(c) == std::string_view::npos;
  }
  void open(Bracket bracket) {
    brackets_.push_back(bracket);
    dots_ = 0;
  }

  std::vector<Bracket> brackets_;
  int dots_ = 0;                ///< of one key
  bool in_word_ = false;        ///< of a key
  bool in_value_ = false;       ///< a number, date or truth value, as long as toml++ reads it
  bool expects_value_ = false;  ///< one begins with the next character that is no space
};

/// The first flaw, and letters outside ASCII that start joined lines before it.
std::optional<TomlFlaw> find_flaw(std::string_view toml, std::vector<const char*>& joined) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  Place place;
  std::string_view rest = toml;
  if (rest.starts_with(byte_order_mark)) rest.remove_prefix(byte_order_mark.size());
  while (!rest.empty()) {
    const char c = rest[0];
    if (place.starts_string(c)) {
      rest = behind_string(rest, joined);
      place.pass_string();
      continue;
    }
    place.pass(c);
    if (c == '#') {
      rest = behind_comment(rest);
      continue;
    }
    if (place.is_too_deep() || !is_ascii(c)) {
      const auto end = toml.end() - static_cast<std::ptrdiff_t>(rest.size());
      return TomlFlaw{is_ascii(c) ? TomlFlaw::nesting : TomlFlaw::characters,
                      1 + static_cast<std::size_t>(std::count(toml.begin(), end, '\n'))};
    }
    rest.remove_prefix(1);
  }
  return std::nullopt;
}

std::string with_escapes(std::string_view toml, const std::vector<const char*>& letters) {
  std::string text;
  for (const char* const letter : letters) {
    const auto at = static_cast<std::size_t>(letter - toml.data());  // of what is left
    char32_t code_point = 0;
    const std::size_t length = utf8_sequence(toml.substr(at), code_point);
    char escape[16];
    std::snprintf(escape, sizeof escape, "\\U%08X", static_cast<unsigned>(code_point));
    text.append(toml.substr(0, at)).append(escape);
    toml.remove_prefix(at + length);
  }
  return text.append(toml);
}

}  // namespace

std::optional<TomlFlaw> make_safe(std::string& toml) {
  std::vector<const char*> joined;
  std::optional<TomlFlaw> flaw = find_flaw(toml, joined);
  if (!flaw && !joined.empty()) toml = with_escapes(toml, joined);
  return flaw;
}

}  // namespace deltapipe::deck
