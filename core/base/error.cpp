// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/error.hpp"

#include <fmt/format.h>

#include "core/base/printable.hpp"

namespace deltapipe {

namespace {

// Longer parts add nothing, and a terminal shows a line of a few hundred characters.
constexpr std::size_t most_of_a_path = 4096;
constexpr std::size_t most_of_a_value = 200;
constexpr std::size_t most_of_a_sentence = 1000;

std::string message_of(const Mistake& mistake) {
  std::string text;
  if (!mistake.file.empty()) {
    text += printable(mistake.file, most_of_a_path);
    if (mistake.line > 0) text += fmt::format(":{}", mistake.line);
    if (mistake.line > 0 && mistake.column > 0) text += fmt::format(":{}", mistake.column);
    text += ": ";
  }
  text += printable(mistake.what, most_of_a_sentence);
  if (!mistake.value.empty()) text += " (got " + printable(mistake.value, most_of_a_value) + ")";
  if (!mistake.remedy.empty()) text += "; " + printable(mistake.remedy, most_of_a_sentence);
  return text;
}

}  // namespace

UserError::UserError(const Mistake& mistake)
    : std::runtime_error(message_of(mistake)), mistake_(std::make_shared<const Mistake>(mistake)) {}

void throw_internal_error(const char* condition, const char* file, int line,
                          const std::string& detail) {
  throw InternalError(fmt::format("internal error at {}:{}: {} does not hold: {}", file, line,
                                  condition, printable(detail, most_of_a_sentence)));
}

}  // namespace deltapipe
