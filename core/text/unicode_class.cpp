// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/unicode_class.hpp"

#include <algorithm>
#include <array>

namespace deltapipe {
namespace {

#include "core/text/unicode_classes.inc"

constexpr char32_t kTabulated = 0x10000;  // the Basic Multilingual Plane: nearly all text

UnicodeClass search(char32_t code_point) {
  const auto after =
      std::upper_bound(kClassStarts.begin(), kClassStarts.end(), (code_point << 2) | 3u);
  return static_cast<UnicodeClass>(*(after - 1) & 3u);
}

struct ClassTable {
  std::array<UnicodeClass, kTabulated> of{};

  ClassTable() {
    for (char32_t c = 0; c < kTabulated; ++c) of[c] = search(c);
  }
};

}  // namespace

UnicodeClass unicode_class(char32_t code_point) {
  static const ClassTable table;
  return code_point < kTabulated ? table.of[code_point] : search(code_point);
}

}  // namespace deltapipe
