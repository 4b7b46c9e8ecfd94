// SPDX-License-Identifier: BSD-3-Clause
// GPT-2's printable names of bytes.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace deltapipe {

/// Token between the texts of GPT-2's training data.
inline constexpr const char* kEndOfText = "<|endoftext|>";

/// Returns all bytes in the order of GPT-2's vocabulary: printable Latin-1, then the others.
const std::array<unsigned char, 256>& byte_order();

/// Returns the name of `bytes` in vocabulary files: every byte becomes one printable character in
/// UTF-8 (a space becomes U+0120).
std::string byte_level_name(std::string_view bytes);

/// Inverse of byte_level_name(); returns nothing if a character of `name` does not name a byte.
std::optional<std::string> byte_level_bytes(std::string_view name);

}  // namespace deltapipe
