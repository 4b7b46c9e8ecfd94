#include "core/data/pretokenizer.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.hpp"
#include "core/utf8.hpp"

namespace deltapipe {
namespace {

// The pattern of GPT-2's encoder.py. \s is spelled out as Unicode's White_Space: PCRE2's own \s
// also has U+180E.
#define DELTAPIPE_SPACES \
  R"(\t-\r\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})"
constexpr const char* kPattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+"
    "| ?[^" DELTAPIPE_SPACES
    "\\p{L}\\p{N}]+"
    "|[" DELTAPIPE_SPACES "]+(?![^" DELTAPIPE_SPACES
    "])"
    "|[" DELTAPIPE_SPACES "]+";
#undef DELTAPIPE_SPACES

// Stands for a byte that is not UTF-8: one byte long, neither letter, digit nor space.
constexpr char kSymbol = '\x01';

struct Pattern {
  pcre2_code* code = nullptr;
  bool jit = false;

  Pattern() {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr);
    DELTAPIPE_ASSERT(code != nullptr, "PCRE2 error " + std::to_string(error));
    jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  }
};

const Pattern& pattern() {
  static const Pattern compiled;
  return compiled;
}

std::string with_symbols_for_invalid_bytes(std::string_view text, std::size_t first_invalid) {
  std::string copy(text);
  for (std::size_t i = first_invalid; i < copy.size(); i = first_invalid_utf8(copy, i + 1)) {
    copy[i] = kSymbol;
  }
  return copy;
}

}  // namespace

struct PieceReader::Match {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  Match() = default;
  Match(const Match&) = delete;
  Match& operator=(const Match&) = delete;
  ~Match() { pcre2_match_data_free(data); }
};

PieceReader::PieceReader(std::string_view text)
    : text_(text), subject_(text), match_(std::make_unique<Match>()) {
  DELTAPIPE_ASSERT(match_->data != nullptr, "PCRE2 has no memory");
  const std::size_t invalid = first_invalid_utf8(text);
  if (invalid == text.size()) return;
  valid_copy_ = with_symbols_for_invalid_bytes(text, invalid);
  subject_ = valid_copy_;
}

PieceReader::~PieceReader() = default;

bool PieceReader::next(std::string_view& piece) {
  if (position_ == text_.size()) return false;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(subject_.data());
  const auto matcher = pattern().jit ? &pcre2_jit_match : &pcre2_match;
  const int count = matcher(pattern().code, subject, subject_.size(), position_, PCRE2_NO_UTF_CHECK,
                            match_->data, nullptr);
  DELTAPIPE_ASSERT(
      count > 0, "PCRE2 error " + std::to_string(count) + " at byte " + std::to_string(position_));
  const std::size_t end = pcre2_get_ovector_pointer(match_->data)[1];
  DELTAPIPE_ASSERT(end > position_, "an empty piece");
  piece = text_.substr(position_, end - position_);
  position_ = end;
  return true;
}

}  // namespace deltapipe
