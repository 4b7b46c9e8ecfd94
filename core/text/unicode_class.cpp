// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/unicode_class.hpp"

#include <array>

#include "core/text/code_point_table.hpp"

namespace deltapipe {
namespace {

#include "core/text/unicode_classes.inc"

}  // namespace

UnicodeClass unicode_class(char32_t code_point) {
  static const CodePointTable<2> table(kClassStarts);
  return static_cast<UnicodeClass>(table(code_point));
}

}  // namespace deltapipe
