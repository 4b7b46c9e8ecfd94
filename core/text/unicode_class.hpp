// SPDX-License-Identifier: BSD-3-Clause
// Letters, numbers and spaces of Unicode, as classified by the tokenizers library.
#pragma once

#include <cstdint>

namespace deltapipe {

/// Classes that GPT-2's pre-tokenisation distinguishes: \p{L}, \p{N}, \s (White_Space), and all
/// others.
enum class UnicodeClass : std::uint8_t { other, letter, number, space };

/// Returns the class of a code point up to U+10FFFF; unassigned ones and surrogates are `other`.
UnicodeClass unicode_class(char32_t code_point);

}  // namespace deltapipe
