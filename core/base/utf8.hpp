// SPDX-License-Identifier: BSD-3-Clause
// UTF-8 as Unicode defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace deltapipe {

/// Returns the length in bytes of the UTF-8 sequence at the start of `text` (not empty); 0 if it is
/// not valid. Sets `code_point` if it is valid.
std::size_t utf8_sequence(std::string_view text, char32_t& code_point);

/// Returns the position of the first byte outside of valid UTF-8 sequences; text.size() if all of
/// them are valid.
std::size_t first_invalid_utf8(std::string_view text, std::size_t start = 0);

/// Appends the UTF-8 sequence of a code point up to U+10FFFF.
void append_utf8(char32_t code_point, std::string& text);

/// Returns true if `text` is the beginning of a valid sequence that continues after it.
bool is_cut_utf8_sequence(std::string_view text);

}  // namespace deltapipe
