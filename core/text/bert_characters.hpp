// SPDX-License-Identifier: BSD-3-Clause
// Properties of characters that BERT's normalisation and pre-tokenisation use, as the tokenizers
// library has them.
#pragma once

#include <string>

namespace deltapipe {

/// Properties of a code point.
struct BertCharacter {
  bool removed;      ///< a control character, U+0000 or U+FFFD, removed by clean_text
  bool space;        ///< White_Space: ends a word
  bool punctuation;  ///< a word of its own
  bool ideograph;    ///< a word of its own with handle_chinese_chars
  bool mark;         ///< removed by strip_accents: a nonspacing mark
  bool decomposes;   ///< changed by strip_accents
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
std::u32string decomposition(char32_t code_point);
char32_t single_lower_case(char32_t code_point);
}  // namespace detail

template <class Take>
void without_accents(char32_t code_point, const Take& take) {
  const BertCharacter properties = bert_character(code_point);
  if (properties.mark) return;
  if (!properties.decomposes) return take(code_point);
  for (const char32_t part : detail::decomposition(code_point))
    if (!bert_character(part).mark) take(part);
}

template <class Take>
void in_lower_case(char32_t code_point, const Take& take) {
  constexpr char32_t kDottedI = 0x130, kDotAbove = 0x307;
  if (code_point < 0x80) return take(code_point - 'A' < 26 ? code_point + ('a' - 'A') : code_point);
  if (code_point != kDottedI) return take(detail::single_lower_case(code_point));
  take(U'i');
  take(kDotAbove);
}

}  // namespace deltapipe
