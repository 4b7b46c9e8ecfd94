// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/grapheme_class.hpp"

#include <array>
#include <cstdint>

#include "core/base/utf8.hpp"
#include "core/text/code_point_table.hpp"

namespace deltapipe {
namespace {

#include "core/text/grapheme_classes.inc"

constexpr char32_t kJoiner = 0x200D;

/// Hangul syllables and their parts (Unicode Standard Annex 29, table 2).
enum class Hangul : std::uint8_t { none, consonant, vowel, final, open, closed };

Hangul hangul(char32_t c) {
  const auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  if (in(0xAC00, 0xD7A3)) return (c - 0xAC00) % 28 == 0 ? Hangul::open : Hangul::closed;
  if (in(0x1100, 0x115F) || in(0xA960, 0xA97C)) return Hangul::consonant;
  if (in(0x1160, 0x11A7) || in(0xD7B0, 0xD7C6)) return Hangul::vowel;
  if (in(0x11A8, 0x11FF) || in(0xD7CB, 0xD7FB)) return Hangul::final;
  return Hangul::none;
}

bool continues_syllable(Hangul before, Hangul next) {
  switch (next) {
    case Hangul::none:
      return false;
    case Hangul::vowel:
      return before == Hangul::consonant || before == Hangul::vowel || before == Hangul::open;
    case Hangul::final:
      return before != Hangul::none && before != Hangul::consonant;
    default:
      return before == Hangul::consonant;
  }
}

}  // namespace

GraphemeClass grapheme_class(char32_t code_point) {
  static const CodePointTable<7> table(kGraphemeStarts);
  const std::uint8_t bits = table(code_point);
  return {.extends = (bits & 1) != 0,
          .prepends = (bits & 2) != 0,
          .control = (bits & 4) != 0,
          .picture = (bits & 8) != 0,
          .consonant = (bits & 16) != 0,
          .linker = (bits & 32) != 0,
          .conjoins = (bits & 64) != 0};
}

std::size_t grapheme_length(std::string_view text) {
  char32_t before = 0;
  std::size_t length = utf8_sequence(text, before);
  if (text.starts_with("\r\n")) return 2;
  GraphemeClass last = grapheme_class(before);
  if (last.control) return length;
  bool after_picture = last.picture;      // a pictograph, then characters that extend it
  bool after_joiner = false;              // ... and last of them a joiner
  bool after_consonant = last.consonant;  // a consonant, then characters that conjoin
  bool after_linker = false;              // ... and a linker among them
  while (length < text.size()) {
    char32_t next = 0;
    const std::size_t bytes = utf8_sequence(text.substr(length), next);
    const GraphemeClass kind = grapheme_class(next);
    const bool continues = kind.extends || (last.prepends && !kind.control) ||
                           (after_joiner && kind.picture) || (after_linker && kind.consonant) ||
                           continues_syllable(hangul(before), hangul(next));
    if (!continues) break;
    after_joiner = after_picture && next == kJoiner;
    after_picture = kind.picture || (after_picture && kind.extends);
    after_linker =
        !kind.consonant && after_consonant && kind.conjoins && (after_linker || kind.linker);
    after_consonant = kind.consonant || (after_consonant && kind.conjoins);
    length += bytes;
    before = next;
    last = kind;
  }
  return length;
}

}  // namespace deltapipe
