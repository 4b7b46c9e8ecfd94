// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/bert_characters.hpp"

#include <algorithm>
#include <array>

#include "core/text/code_point_table.hpp"

namespace deltapipe {
namespace {

using detail::CharacterMapping;

#include "core/text/bert_characters.inc"

std::uint8_t character_bits(char32_t code_point) {
  const auto after =
      std::upper_bound(kCharacterStarts.begin(), kCharacterStarts.end(), (code_point << 5) | 31u);
  return static_cast<std::uint8_t>(*(after - 1) & 31u);
}

template <std::size_t N>
detail::MappingRange mapping_of(const std::array<CharacterMapping, N>& table, char32_t code_point) {
  const auto [first, last] = std::equal_range(
      table.begin(), table.end(), CharacterMapping{code_point, 0},
      [](const CharacterMapping& a, const CharacterMapping& b) { return a.from < b.from; });
  return {table.data() + (first - table.begin()), table.data() + (last - table.begin())};
}

}  // namespace

BertCharacter bert_character(char32_t code_point) {
  static const CodePointTable<std::uint8_t> table(character_bits);
  const std::uint8_t bits = table(code_point);
  return {.removed = (bits & 1) != 0,
          .space = (bits & 2) != 0,
          .punctuation = (bits & 4) != 0,
          .ideograph = (bits & 8) != 0,
          .mark = (bits & 16) != 0};
}

detail::MappingRange detail::accent_mapping(char32_t code_point) {
  return mapping_of(kWithoutAccents, code_point);
}

detail::MappingRange detail::lower_case_mapping(char32_t code_point) {
  return mapping_of(kLowerCase, code_point);
}

}  // namespace deltapipe
