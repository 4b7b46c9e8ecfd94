// GPT-2's printable names of bytes, and which bytes of a text are UTF-8.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace deltapipe {

/// All bytes in the order of GPT-2's vocabulary: the printable ones of Latin-1, then the others.
const std::array<unsigned char, 256>& byte_order();

/// The name of `bytes` in vocabulary files: every byte becomes one printable character in UTF-8
/// (a space becomes U+0120).
std::string byte_level_name(std::string_view bytes);

/// Inverse of byte_level_name; nothing if `name` has a character that names no byte.
std::optional<std::string> byte_level_bytes(std::string_view name);

/// Length in bytes of the UTF-8 sequence at the start of `text` (not empty), 0 if it is not valid
/// (also overlong forms, surrogates, above U+10FFFF). `code_point` is set if it is valid.
std::size_t utf8_sequence(std::string_view text, char32_t& code_point);

/// Position of the first byte that belongs to no valid UTF-8 sequence; text.size() if all is valid.
std::size_t first_invalid_utf8(std::string_view text, std::size_t start = 0);

}  // namespace deltapipe
