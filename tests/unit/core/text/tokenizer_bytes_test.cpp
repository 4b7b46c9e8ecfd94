// SPDX-License-Identifier: BSD-3-Clause
// Names of bytes and the well-formed sequences of UTF-8 (Unicode 15.0, table 3-7).
#include <catch2/catch.hpp>
#include <set>

#include "core/base/utf8.hpp"
#include "core/text/byte_level.hpp"
#include "tests/unit/core/text/text_support.hpp"

namespace deltapipe {
namespace {

using namespace testing;

TEST_CASE("UTF-8 sequences are distinguished from other bytes", "[tokenizer]") {
  std::size_t mistakes = 0;
  for (std::uint32_t point = 0; point < 0x120000; point += point < 0x11000 ? 1 : 97) {
    const std::string bytes = utf8(point);
    const bool valid = point < 0x110000 && (point < 0xD800 || point > 0xDFFF);
    char32_t found = 0;
    mistakes += utf8_sequence(bytes + "x", found) != (valid ? bytes.size() : 0);
    mistakes += valid && found != point;
    mistakes += bytes.size() > 1 && utf8_sequence(bytes.substr(0, bytes.size() - 1), found) != 0;
  }
  CHECK(mistakes == 0);
  for (const char* bytes : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                            "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3\x28"}) {
    char32_t found = 0;
    CHECK(utf8_sequence(bytes, found) == 0);
  }
}

TEST_CASE("The first invalid byte is found anywhere", "[tokenizer]") {
  for (std::size_t length = 0; length < 40; ++length) {
    std::string text(length, 'a');
    CHECK(first_invalid_utf8(text) == length);
    for (std::size_t i = 0; i < length; ++i) {
      text[i] = '\xFF';
      CHECK(first_invalid_utf8(text) == i);
      CHECK(first_invalid_utf8(text, i + 1) == length);
      text[i] = 'a';
    }
  }
}

TEST_CASE("Every byte has a name of its own", "[tokenizer]") {
  std::set<std::string> names;
  std::set<unsigned char> ordered(byte_order().begin(), byte_order().end());
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    CHECK(byte_level_bytes(byte_level_name(one)) == one);
    names.insert(byte_level_name(one));
  }
  CHECK(names.size() == 256);
  CHECK(ordered.size() == 256);
  CHECK(byte_level_name(" a\n") == "\u0120a\u010A");
  CHECK_FALSE(byte_level_bytes("a b").has_value());
  CHECK_FALSE(byte_level_bytes("\u4F60").has_value());
  CHECK_FALSE(byte_level_bytes("\xFF").has_value());
}

}  // namespace
}  // namespace deltapipe
