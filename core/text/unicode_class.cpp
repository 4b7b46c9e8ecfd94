// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/unicode_class.hpp"

#include <algorithm>
#include <array>

#include "core/text/code_point_table.hpp"

namespace deltapipe {
namespace {

#include "core/text/unicode_classes.inc"

UnicodeClass class_of(char32_t code_point) {
  const auto after =
      std::upper_bound(kClassStarts.begin(), kClassStarts.end(), (code_point << 2) | 3u);
  return static_cast<UnicodeClass>(*(after - 1) & 3u);
}

}  // namespace

UnicodeClass unicode_class(char32_t code_point) {
  static const CodePointTable<UnicodeClass> table(class_of);
  return table(code_point);
}

}  // namespace deltapipe
