// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/printable.hpp"

#include <catch2/catch.hpp>

using deltapipe::printable;
using namespace std::string_literals;

TEST_CASE("Printable text stays as it is", "[printable]") {
  for (const char* text : {"", "plain ~!\\", "naïve 名 😀", "\u200d", "a b"}) {
    CHECK(printable(text) == text);
  }
}

TEST_CASE("What steers a terminal is shown escaped", "[printable]") {
  CHECK(printable("a\nb\r\tc\x1b[31m\x7f\0d"s) == "a\\nb\\r\\tc\\x1B[31m\\x7F\\x00d");
  CHECK(printable("\u009b2J \u2028 \u202e \ufeff \U000E0041") ==
        "\\u{9B}2J \\u{2028} \\u{202E} \\u{FEFF} \\u{E0041}");
  CHECK(printable("\xe9\xff \xc3") == "\\xE9\\xFF \\xC3");
  CHECK(printable("\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80") ==
        "\\xED\\xA0\\x80\\xC0\\x80\\xF4\\x90\\x80\\x80");
}

TEST_CASE("Showing twice changes nothing", "[printable]") {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  CHECK(printable(printable(all)) == printable(all));
}

TEST_CASE("Long text is cut between characters", "[printable]") {
  CHECK(printable("abc", 3) == "abc");
  CHECK(printable("abcd", 3) == "abc...");
  CHECK(printable("abé", 3) == "ab...");
  CHECK(printable("ab\n", 3) == "ab...");
  CHECK(printable(std::string(1 << 20, '\x01'), 8) == "\\x01\\x01...");
}
