// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/printable.hpp"

#include <array>
#include <cstdio>

#include "core/base/utf8.hpp"

namespace deltapipe {

namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// Characters that a terminal acts on, or that change the order in which a line is displayed.
constexpr std::array<Range, 9> steering = {{{0x00, 0x1F},
                                            {0x7F, 0x9F},
                                            {0x061C, 0x061C},
                                            {0x200E, 0x200F},
                                            {0x2028, 0x202E},
                                            {0x2066, 0x2069},
                                            {0xFEFF, 0xFEFF},
                                            {0xFFF9, 0xFFFB},
                                            {0xE0000, 0xE007F}}};

bool steers(char32_t code_point) {
  for (const Range& range : steering) {
    if (code_point >= range.first && code_point <= range.last) return true;
  }
  return false;
}

std::string escaped(char32_t code_point) {
  if (code_point == '\n') return "\\n";
  if (code_point == '\r') return "\\r";
  if (code_point == '\t') return "\\t";
  std::array<char, 16> text{};
  (void)std::snprintf(text.data(), text.size(), code_point < 0x80 ? "\\x%02X" : "\\u{%X}",
                      static_cast<unsigned>(code_point));
  return text.data();
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  std::string result;
  while (!text.empty()) {
    char32_t code_point = 0;
    const std::size_t length = utf8_sequence(text, code_point);
    std::string next;
    if (length == 0) {
      std::array<char, 8> byte{};
      (void)std::snprintf(byte.data(), byte.size(), "\\x%02X",
                          static_cast<unsigned>(static_cast<unsigned char>(text[0])));
      next = byte.data();
    } else {
      next = steers(code_point) ? escaped(code_point) : std::string(text.substr(0, length));
    }
    if (result.size() + next.size() > most) return result + "...";
    result += next;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return result;
}

}  // namespace deltapipe
