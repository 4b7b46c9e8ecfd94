#include "core/data/byte_level.hpp"

#include <cstdint>
#include <cstring>

namespace deltapipe {
namespace {

constexpr bool names_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteNames {
  std::array<unsigned char, 256> order{};
  std::array<char32_t, 256> code_point{};
  // Code points of byte names end at U+0143; -1: names no byte.
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
  for (const char c : bytes) {
    const char32_t code_point = byte_names().code_point[static_cast<unsigned char>(c)];
    if (code_point < 0x80) {
      name += static_cast<char>(code_point);
    } else {
      name += static_cast<char>(0xC0 | (code_point >> 6));
      name += static_cast<char>(0x80 | (code_point & 0x3F));
    }
  }
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

}  // namespace deltapipe
