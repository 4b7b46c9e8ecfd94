// SPDX-License-Identifier: BSD-3-Clause
// BERT's normalisation and pre-tokenisation: cuts a text into the words that WordPiece encodes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/utf8.hpp"
#include "core/text/bert_characters.hpp"

namespace deltapipe {

/// Settings of the tokenizers library's BertNormalizer.
struct BertNormalizer {
  bool clean_text = true;            ///< remove control characters
  bool handle_chinese_chars = true;  ///< every ideograph is a word
  bool strip_accents = true;
  bool lowercase = true;
};

/// Calls take(word) for each word of a text: at least one character, normalised. `word` is valid
/// during the call only. A byte outside of valid UTF-8 sequences counts as U+FFFD.
template <class Take>
void for_each_bert_word(std::string_view text, const BertNormalizer& settings, const Take& take) {
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) take(std::string_view(word));
    word.clear();
  };
  const auto add = [&](char32_t c) {
    const BertCharacter properties = bert_character(c);
    if (properties.space || properties.punctuation) end_word();
    if (properties.space) return;
    append_utf8(c, word);
    if (properties.punctuation) end_word();
  };
  const auto add_lower = [&](char32_t c) { settings.lowercase ? in_lower_case(c, add) : add(c); };
  for (std::size_t i = 0; i < text.size();) {
    char32_t c = 0xFFFD;
    const std::size_t length = utf8_sequence(text.substr(i), c);
    i += length > 0 ? length : 1;
    const BertCharacter properties = bert_character(c);
    if (settings.clean_text && properties.removed) continue;
    const bool alone = settings.handle_chinese_chars && properties.ideograph;
    if (alone) end_word();
    if (settings.strip_accents) {
      without_accents(c, add_lower);
    } else {
      add_lower(c);
    }
    if (alone) end_word();
  }
  end_word();
}

}  // namespace deltapipe
