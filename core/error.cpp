#include "core/error.hpp"

namespace deltapipe {

namespace {

std::string message_of(const Mistake& mistake) {
  std::string text;
  if (!mistake.file.empty()) {
    text += mistake.file;
    if (mistake.line > 0) text += ":" + std::to_string(mistake.line);
    if (mistake.line > 0 && mistake.column > 0) text += ":" + std::to_string(mistake.column);
    text += ": ";
  }
  text += mistake.what;
  if (!mistake.value.empty()) text += " (got " + mistake.value + ")";
  if (!mistake.remedy.empty()) text += "; " + mistake.remedy;
  return text;
}

}  // namespace

UserError::UserError(const Mistake& mistake) : std::runtime_error(message_of(mistake)) {}

void throw_internal_error(const char* condition, const char* file, int line,
                          const std::string& detail) {
  throw InternalError(std::string("internal error at ") + file + ":" + std::to_string(line) + ": " +
                      condition + " does not hold: " + detail);
}

}  // namespace deltapipe
