// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/byte_level.hpp"

#include "core/base/utf8.hpp"

namespace deltapipe {
namespace {

constexpr bool names_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteNames {
  std::array<unsigned char, 256> order{};
  std::array<char32_t, 256> code_point{};
  // Code points of byte names end at U+0143; -1: does not name a byte.
  std::array<int, 0x144> byte{};

  ByteNames() {
    byte.fill(-1);
    std::size_t next = 0;
    for (int b = 0; b < 256; ++b) {
      if (!names_itself(b)) continue;
      order[next++] = static_cast<unsigned char>(b);
      code_point[static_cast<std::size_t>(b)] = static_cast<char32_t>(b);
    }
    char32_t other = 0x100;
    for (int b = 0; b < 256; ++b) {
      if (names_itself(b)) continue;
      order[next++] = static_cast<unsigned char>(b);
      code_point[static_cast<std::size_t>(b)] = other++;
    }
    for (std::size_t b = 0; b < 256; ++b) byte[code_point[b]] = static_cast<int>(b);
  }
};

const ByteNames& byte_names() {
  static const ByteNames names;
  return names;
}

}  // namespace

const std::array<unsigned char, 256>& byte_order() {
  return byte_names().order;
}

std::string byte_level_name(std::string_view bytes) {
  std::string name;
  for (const char c : bytes)
    append_utf8(byte_names().code_point[static_cast<unsigned char>(c)], name);
  return name;
}

std::optional<std::string> byte_level_bytes(std::string_view name) {
  std::string bytes;
  while (!name.empty()) {
    char32_t code_point = 0;
    const std::size_t length = utf8_sequence(name, code_point);
    if (length == 0 || code_point >= byte_names().byte.size()) return std::nullopt;
    const int byte = byte_names().byte[code_point];
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    name.remove_prefix(length);
  }
  return bytes;
}

}  // namespace deltapipe
