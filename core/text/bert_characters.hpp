// SPDX-License-Identifier: BSD-3-Clause
// Properties of characters that BERT's normalisation and pre-tokenisation use, as the tokenizers
// library has them.
#pragma once

#include <cstdint>

namespace deltapipe {

/// Properties of a code point.
struct BertCharacter {
  bool removed;      ///< a control character, U+0000 or U+FFFD, removed by clean_text
  bool space;        ///< White_Space: ends a word
  bool punctuation;  ///< a word of its own
  bool ideograph;    ///< a word of its own with handle_chinese_chars
  bool mark;         ///< removed by strip_accents: a nonspacing mark
};

/// Returns the properties of a code point up to U+10FFFF.
BertCharacter bert_character(char32_t code_point);

/// Calls take(character) for the canonical decomposition of a code point (NFD) without nonspacing
/// marks.
template <class Take>
void without_accents(char32_t code_point, const Take& take);
/// Calls take(character) for the lower case of a code point.
template <class Take>
void in_lower_case(char32_t code_point, const Take& take);

namespace detail {
struct CharacterMapping {
  char32_t from, to;
};
struct MappingRange {
  const CharacterMapping *first, *last;
};
MappingRange accent_mapping(char32_t code_point);
MappingRange lower_case_mapping(char32_t code_point);

constexpr char32_t kHangulSyllables = 0xAC00, kHangulEnd = 0xD7A4;

template <class Take>
void take_mapped(char32_t code_point, MappingRange mapping, const Take& take) {
  if (mapping.first == mapping.last) return take(code_point);
  for (const CharacterMapping* m = mapping.first; m != mapping.last; ++m) take(m->to);
}
}  // namespace detail

template <class Take>
void without_accents(char32_t code_point, const Take& take) {
  if (bert_character(code_point).mark) return;
  if (code_point < detail::kHangulSyllables || code_point >= detail::kHangulEnd)
    return detail::take_mapped(code_point, detail::accent_mapping(code_point), take);
  // The Unicode Standard, 3.12: consonant, vowel and final consonant of a Hangul syllable.
  constexpr char32_t kVowels = 21, kFinals = 28;
  const char32_t index = code_point - detail::kHangulSyllables;
  take(0x1100 + index / (kVowels * kFinals));
  take(0x1161 + index % (kVowels * kFinals) / kFinals);
  if (index % kFinals > 0) take(0x11A7 + index % kFinals);
}

template <class Take>
void in_lower_case(char32_t code_point, const Take& take) {
  if (code_point < 0x80) return take(code_point - 'A' < 26 ? code_point + ('a' - 'A') : code_point);
  detail::take_mapped(code_point, detail::lower_case_mapping(code_point), take);
}

}  // namespace deltapipe
