// SPDX-License-Identifier: BSD-3-Clause
// BERT's normalisation of every code point against the tokenizers library, by checksums that
// scripts/make_unicode_classes.py computes from the library's answers.
#include "core/text/bert_characters.hpp"

#include <zlib.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

#include "core/base/utf8.hpp"

namespace deltapipe {
namespace {

#include "tests/unit/core/text/bert_characters_sums.inc"

/// CRC-32 of all code points and what change(code point, take) makes of them, as UTF-8.
template <class Change>
std::uint32_t checksum(const Change& change) {
  std::string text;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    append_utf8(c, text);
    change(c, [&](char32_t to) { append_utf8(to, text); });
    text += '\n';
  }
  return static_cast<std::uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
}

}  // namespace

TEST_CASE("Characters without accents and in lower case are those of the tokenizers library",
          "[tokenizer][wordpiece]") {
  CHECK(checksum([](char32_t c, auto take) { without_accents(c, take); }) == kWithoutAccents);
  CHECK(checksum([](char32_t c, auto take) { in_lower_case(c, take); }) == kInLowerCase);
}

}  // namespace deltapipe
