// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/utf8.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace deltapipe {

std::size_t utf8_sequence(std::string_view text, char32_t& code_point) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    code_point = lead;
    return 1;
  }
  std::size_t length = 0;
  char32_t value = 0;
  char32_t least = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2, value = lead & 0x1Fu, least = 0x80;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3, value = lead & 0x0Fu, least = 0x800;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4, value = lead & 0x07u, least = 0x10000;
  } else {
    return 0;
  }
  if (text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    value = (value << 6) | (byte(i) & 0x3Fu);
  }
  if (value < least || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return 0;
  code_point = value;
  return length;
}

void append_utf8(char32_t code_point, std::string& text) {
  const auto tail = [&](int shift) {
    text += static_cast<char>(0x80u | ((code_point >> shift) & 0x3Fu));
  };
  if (code_point < 0x80) {
    text += static_cast<char>(code_point);
    return;
  }
  if (code_point < 0x800) {
    text += static_cast<char>(0xC0u | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      text += static_cast<char>(0xE0u | code_point >> 12);
    } else {
      text += static_cast<char>(0xF0u | code_point >> 18);
      tail(12);
    }
    tail(6);
  }
  tail(0);
}

std::size_t first_invalid_utf8(std::string_view text, std::size_t start) {
  std::size_t i = start;
  while (i < text.size()) {
    std::uint64_t eight = 0;
    if (text.size() - i >= sizeof eight) {
      std::memcpy(&eight, text.data() + i, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        i += sizeof eight;
        continue;
      }
    }
    char32_t code_point = 0;
    const std::size_t length = utf8_sequence(text.substr(i), code_point);
    if (length == 0) return i;
    i += length;
  }
  return i;
}

bool is_cut_utf8_sequence(std::string_view text) {
  constexpr std::size_t longest = 4;
  if (text.empty() || text.size() >= longest) return false;
  // Every beginning becomes valid with some continuation: the lowest or the highest byte suffices.
  for (const char fill : {'\x80', '\xBF'}) {
    std::string whole(text);
    while (whole.size() < longest) {
      whole += fill;
      char32_t code_point = 0;
      if (utf8_sequence(whole, code_point) == whole.size()) return true;
    }
  }
  return false;
}

}  // namespace deltapipe
