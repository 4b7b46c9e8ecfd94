// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/sentencepiece_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "core/base/printable.hpp"
#include "core/base/utf8.hpp"
#include "core/text/tokenizer_json.hpp"

namespace deltapipe {
namespace {

constexpr std::size_t kMostPieces = std::size_t{1} << 22;
constexpr std::size_t kMostPrefixes = 64;  // libsentencepiece does not check for more

// Numbers of the fields in sentencepiece_model.proto.
namespace field {
constexpr std::uint32_t pieces = 1, trainer_spec = 2, normalizer_spec = 3;
constexpr std::uint32_t piece = 1, score = 2, type = 3;
constexpr std::uint32_t model_type = 3, treat_whitespace_as_suffix = 24, byte_fallback = 35;
constexpr std::uint32_t precompiled_charsmap = 2, add_dummy_prefix = 3,
                        remove_extra_whitespaces = 4, escape_whitespaces = 5;
}  // namespace field

enum class WireType : std::uint8_t { varint = 0, eight_bytes = 1, text = 2, four_bytes = 5 };

/// A field of a message.
struct WireField {
  std::uint32_t number = 0;
  WireType type = WireType::varint;
  std::uint64_t integer = 0;   ///< of a varint or of fixed bytes
  std::string_view text = {};  ///< of a string, bytes or a message
};

/// Reads the fields of a protobuf message in order.
class WireReader {
 public:
  WireReader(const std::string& file, std::string_view bytes) : file_(file), rest_(bytes) {}

  bool next(WireField& field) {
    if (rest_.empty()) return false;
    const std::uint64_t tag = varint();
    if (tag >> 3 == 0 || tag >> 3 > (1u << 29) - 1) damaged("a field has no number");
    field = {.number = static_cast<std::uint32_t>(tag >> 3),
             .type = static_cast<WireType>(tag & 7)};
    switch (field.type) {
      case WireType::varint:
        field.integer = varint();
        break;
      case WireType::eight_bytes:
        field.integer = fixed(8);
        break;
      case WireType::four_bytes:
        field.integer = fixed(4);
        break;
      case WireType::text:
        field.text = take(varint());
        break;
      default:
        damaged("a field has an unknown type");
    }
    return true;
  }

  [[noreturn]] void damaged(const std::string& what) const {
    token_json::fail(file_, "this is not a SentencePiece model: " + what, "",
                     token_json::kDownloadAgain);
  }

 private:
  std::string_view take(std::uint64_t bytes) {
    if (bytes > rest_.size()) damaged("it is cut off");
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  std::uint64_t fixed(int bytes) {
    const std::string_view taken = take(static_cast<std::uint64_t>(bytes));
    std::uint64_t number = 0;
    for (int i = bytes - 1; i >= 0; --i)
      number = number << 8 | static_cast<unsigned char>(taken[static_cast<std::size_t>(i)]);
    return number;
  }
  std::uint64_t varint() {
    std::uint64_t number = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      number |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return number;
    }
    damaged("a number is too long");
  }

  const std::string& file_;
  std::string_view rest_;
};

bool is(const WireField& field, std::uint32_t number, WireType type) {
  return field.number == number && field.type == type;
}

SentencePiece read_piece(const std::string& file, std::string_view bytes, std::size_t id) {
  WireReader reader(file, bytes);
  SentencePiece piece;
  const std::string name = fmt::format("piece {}", id);
  for (WireField field; reader.next(field);) {
    if (is(field, field::piece, WireType::text)) {
      piece.text = field.text;
    } else if (is(field, field::score, WireType::four_bytes)) {
      piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(field.integer));
    } else if (is(field, field::type, WireType::varint)) {
      if (field.integer < 1 || field.integer > 6)
        token_json::fail(file, name + " has an unknown type", std::to_string(field.integer),
                         token_json::kDownloadAgain);
      piece.kind = static_cast<PieceKind>(field.integer);
    }
  }
  if (piece.text.empty())
    token_json::fail(file, name + " is empty", "", token_json::kDownloadAgain);
  if (piece.text.find('\0') != std::string::npos ||
      first_invalid_utf8(piece.text) < piece.text.size())
    token_json::fail(file, name + " is not UTF-8 text", printable(piece.text, 60),
                     token_json::kDownloadAgain);
  if (!std::isfinite(piece.score))
    token_json::fail(file, "the score of " + name + " is not finite", printable(piece.text, 60),
                     token_json::kDownloadAgain);
  return piece;
}

void read_trainer_spec(const std::string& file, std::string_view bytes, SentencePieceModel& model) {
  WireReader reader(file, bytes);
  for (WireField field; reader.next(field);) {
    if (field.type != WireType::varint) continue;
    const bool is_set = field.integer != 0;
    if (field.number == field::model_type)
      model.model_type = static_cast<int>(std::min<std::uint64_t>(field.integer, 99));
    if (field.number == field::treat_whitespace_as_suffix)
      model.treat_whitespace_as_suffix = is_set;
    if (field.number == field::byte_fallback) model.byte_fallback = is_set;
  }
}

void read_normalizer_spec(const std::string& file, std::string_view bytes,
                          SentencePieceModel& model) {
  WireReader reader(file, bytes);
  for (WireField field; reader.next(field);) {
    if (is(field, field::precompiled_charsmap, WireType::text))
      model.precompiled_charsmap = field.text;
    if (field.type != WireType::varint) continue;
    const bool is_set = field.integer != 0;
    if (field.number == field::add_dummy_prefix) model.add_dummy_prefix = is_set;
    if (field.number == field::remove_extra_whitespaces) model.remove_extra_whitespaces = is_set;
    if (field.number == field::escape_whitespaces) model.escape_whitespaces = is_set;
  }
}

/// Checks what libsentencepiece reports only in a log, or not at all.
void check_pieces(const std::string& file, const SentencePieceModel& model) {
  std::size_t unknown = 0;
  std::size_t bytes = 0;
  std::unordered_set<std::string_view> texts;
  std::vector<std::string_view> symbols;
  for (const SentencePiece& piece : model.pieces) {
    if (!texts.insert(piece.text).second)
      token_json::fail(file, "the model has a piece twice", printable(piece.text, 60),
                       token_json::kDownloadAgain);
    if (piece.kind == PieceKind::unknown) ++unknown;
    if (piece.kind == PieceKind::byte) ++bytes;
    if (piece.kind == PieceKind::user_defined) symbols.push_back(piece.text);
  }
  if (unknown != 1)
    token_json::fail(file, "the model must have exactly one unknown piece", std::to_string(unknown),
                     token_json::kDownloadAgain);
  if (bytes != (model.byte_fallback ? 256 : 0))
    token_json::fail(file, "the number of byte pieces does not fit byte_fallback",
                     std::to_string(bytes), token_json::kDownloadAgain);
  std::ranges::sort(symbols);
  std::vector<std::string_view> prefixes;
  for (const std::string_view symbol : symbols) {
    while (!prefixes.empty() && !symbol.starts_with(prefixes.back())) prefixes.pop_back();
    prefixes.push_back(symbol);
    if (prefixes.size() > kMostPrefixes)
      token_json::fail(file, "too many user-defined pieces begin with others",
                       printable(std::string(symbol), 60), "use a tokenizer with fewer of them");
  }
}

void put_varint(std::uint64_t number, std::string& bytes) {
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>(number | 0x80);
  bytes += static_cast<char>(number);
}
void put_tag(std::uint32_t number, WireType type, std::string& bytes) {
  put_varint(number << 3 | static_cast<std::uint32_t>(type), bytes);
}
void put(std::uint32_t number, std::uint64_t value, std::string& bytes) {
  put_tag(number, WireType::varint, bytes);
  put_varint(value, bytes);
}
void put(std::uint32_t number, const std::string& text, std::string& bytes) {
  put_tag(number, WireType::text, bytes);
  put_varint(text.size(), bytes);
  bytes += text;
}
void put(std::uint32_t number, float value, std::string& bytes) {
  put_tag(number, WireType::four_bytes, bytes);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift);
}

}  // namespace

SentencePieceModel read_sentencepiece_model(const std::string& file, std::string_view bytes) {
  WireReader reader(file, bytes);
  SentencePieceModel model;
  bool has_trainer = false;
  bool has_normalizer = false;
  for (WireField field; reader.next(field);) {
    if (is(field, field::pieces, WireType::text)) {
      if (model.pieces.size() == kMostPieces)
        token_json::fail(file, "the model has too many pieces", fmt::format("{}+", kMostPieces),
                         token_json::kDownloadAgain);
      model.pieces.push_back(read_piece(file, field.text, model.pieces.size()));
    } else if (is(field, field::trainer_spec, WireType::text)) {
      read_trainer_spec(file, field.text, model);
      has_trainer = true;
    } else if (is(field, field::normalizer_spec, WireType::text)) {
      read_normalizer_spec(file, field.text, model);
      has_normalizer = true;
    }
  }
  if (model.pieces.empty()) reader.damaged("it has no pieces");
  // They follow the pieces, so that a file that ends between two pieces lacks them.
  if (!has_trainer || !has_normalizer) reader.damaged("it is cut off");
  check_pieces(file, model);
  return model;
}

std::string serialized(const SentencePieceModel& model) {
  std::string bytes;
  for (const SentencePiece& piece : model.pieces) {
    std::string message;
    put(field::piece, piece.text, message);
    put(field::score, piece.score, message);
    put(field::type, static_cast<std::uint64_t>(piece.kind), message);
    put(field::pieces, message, bytes);
  }
  const auto flag = [](std::uint32_t number, bool is_set, std::string& message) {
    put(number, is_set ? std::uint64_t{1} : std::uint64_t{0}, message);
  };
  std::string trainer;
  put(field::model_type, static_cast<std::uint64_t>(model.model_type), trainer);
  flag(field::treat_whitespace_as_suffix, model.treat_whitespace_as_suffix, trainer);
  flag(field::byte_fallback, model.byte_fallback, trainer);
  put(field::trainer_spec, trainer, bytes);
  std::string normalizer;
  put(field::precompiled_charsmap, model.precompiled_charsmap, normalizer);
  flag(field::add_dummy_prefix, model.add_dummy_prefix, normalizer);
  flag(field::remove_extra_whitespaces, model.remove_extra_whitespaces, normalizer);
  flag(field::escape_whitespaces, model.escape_whitespaces, normalizer);
  put(field::normalizer_spec, normalizer, bytes);
  return bytes;
}

}  // namespace deltapipe
