// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/bert_characters.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/base/error.hpp"
#include "core/text/code_point_table.hpp"

namespace deltapipe {
namespace {

/// Letters `step` apart, whose lower case is `distance` away.
struct CaseRun {
  char32_t first, last;
  char32_t step;
  std::int32_t distance;
};

#include "core/text/bert_characters.inc"

}  // namespace

BertCharacter bert_character(char32_t code_point) {
  static const CodePointTable<6> table(kCharacterStarts);
  const std::uint8_t bits = table(code_point);
  return {.removed = (bits & 1) != 0,
          .space = (bits & 2) != 0,
          .punctuation = (bits & 4) != 0,
          .ideograph = (bits & 8) != 0,
          .mark = (bits & 16) != 0,
          .decomposes = (bits & 32) != 0};
}

std::u32string detail::decomposition(char32_t code_point) {
  // Characters that decompose do so in the same way in all later versions of Unicode.
  constexpr std::size_t kLongest = 4;
  std::array<utf8proc_int32_t, kLongest> parts{};
  int ignored = 0;
  const utf8proc_ssize_t count = utf8proc_decompose_char(
      static_cast<utf8proc_int32_t>(code_point), parts.data(), parts.size(),
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &ignored);
  DELTAPIPE_ASSERT(count > 0 && count <= static_cast<utf8proc_ssize_t>(kLongest),
                   "a character that decomposes");
  return {parts.begin(), parts.begin() + count};
}

char32_t detail::single_lower_case(char32_t code_point) {
  const auto after = std::ranges::upper_bound(kCaseRuns, code_point, {}, &CaseRun::first);
  const CaseRun& run = *(after - 1);
  const bool is_in_run = code_point <= run.last && (code_point - run.first) % run.step == 0;
  return is_in_run ? code_point + static_cast<char32_t>(run.distance) : code_point;
}

}  // namespace deltapipe
