// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/pretokenizer.hpp"

#include "core/base/utf8.hpp"
#include "core/text/unicode_class.hpp"

namespace deltapipe {
namespace {

struct Symbol {
  std::size_t bytes;
  UnicodeClass kind;
};

/// Returns the symbol at `position` < text.size().
Symbol symbol_at(std::string_view text, std::size_t position) {
  char32_t code_point = 0;
  const std::size_t bytes = utf8_sequence(text.substr(position), code_point);
  if (bytes == 0) return {1, UnicodeClass::other};
  return {bytes, unicode_class(code_point)};
}

/// Returns the bytes of the English contraction at the start of `text`; 0: none.
std::size_t contraction(std::string_view text) {
  using namespace std::string_view_literals;
  if (text.size() < 2 || text[0] != '\'') return 0;
  if ("stmd"sv.find(text[1]) != std::string_view::npos) return 2;
  const std::string_view two = text.substr(1, 2);
  return two == "re" || two == "ve" || two == "ll" ? 3 : 0;
}

/// Returns the end of the run of symbols of class `kind` that starts at `position`.
std::size_t run_end(std::string_view text, std::size_t position, UnicodeClass kind) {
  while (position < text.size()) {
    const Symbol symbol = symbol_at(text, position);
    if (symbol.kind != kind) break;
    position += symbol.bytes;
  }
  return position;
}

/// Returns the end of the piece that starts with white space at `position`. At the end of the text
/// this is all of it. Elsewhere it omits the last space, which belongs to the next piece or is a
/// separate one.
std::size_t spaces_end(std::string_view text, std::size_t position) {
  std::size_t end = position, last = position;
  while (end < text.size()) {
    const Symbol symbol = symbol_at(text, end);
    if (symbol.kind != UnicodeClass::space) return last > position ? last : end;
    last = end;
    end += symbol.bytes;
  }
  return end;
}

std::size_t piece_end(std::string_view text, std::size_t position) {
  if (const std::size_t bytes = contraction(text.substr(position)); bytes > 0) {
    return position + bytes;
  }
  std::size_t word = position;
  if (text[position] == ' ' && position + 1 < text.size()) ++word;
  const UnicodeClass kind = symbol_at(text, word).kind;
  return kind == UnicodeClass::space ? spaces_end(text, position) : run_end(text, word, kind);
}

}  // namespace

bool PieceReader::next(std::string_view& piece) {
  if (position_ == text_.size()) return false;
  const std::size_t end = piece_end(text_, position_);
  piece = text_.substr(position_, end - position_);
  position_ = end;
  return true;
}

}  // namespace deltapipe
