// SPDX-License-Identifier: BSD-3-Clause
// Graphemes, as the tokenizers library has them (Unicode Standard Annex 29).
#pragma once

#include <cstddef>
#include <string_view>

namespace deltapipe {

/// Properties of a code point that graphemes of up to five bytes depend on.
struct GraphemeClass {
  bool extends;    ///< continues a grapheme: Extend, SpacingMark, or the zero-width joiner
  bool prepends;   ///< the next character continues its grapheme
  bool control;    ///< a grapheme on its own
  bool picture;    ///< Extended_Pictographic: continues a grapheme after another and a joiner
  bool consonant;  ///< InCB=Consonant: continues a grapheme after another and a linker
  bool linker;     ///< InCB=Linker, such as a virama
  bool conjoins;   ///< InCB=Linker or Extend: may be between a consonant and a linker
};

/// Returns the properties of a code point up to U+10FFFF.
GraphemeClass grapheme_class(char32_t code_point);

/// Returns the length in bytes of the grapheme at the start of `text`, which is valid UTF-8 and not
/// empty. A flag, whose two characters have eight bytes, counts as two graphemes.
std::size_t grapheme_length(std::string_view text);

}  // namespace deltapipe
