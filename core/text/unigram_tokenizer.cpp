// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/unigram_tokenizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "core/base/utf8.hpp"
#include "core/text/bert_characters.hpp"
#include "core/text/grapheme_class.hpp"
#include "core/text/token_identity.hpp"

namespace deltapipe {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581
constexpr double kUnknownPenalty = 10;               // below the lowest score, as in SentencePiece
constexpr std::size_t kShortGrapheme = 6;            // longer ones are mapped by character

bool is_graphic(char c) {
  return c > ' ' && c < 0x7F;
}

/// Calls take(character, bytes) for the characters of a valid UTF-8 text.
template <class Take>
void for_each_character(std::string_view text, const Take& take) {
  for (std::size_t i = 0; i < text.size();) {
    char32_t c = 0;
    const std::size_t length = utf8_sequence(text.substr(i), c);
    take(c, text.substr(i, length));
    i += length;
  }
}

/// Replaces each byte outside of valid UTF-8 sequences by U+FFFD.
std::string valid_utf8(std::string_view text) {
  std::string valid;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = first_invalid_utf8(text, start);
    valid += text.substr(start, end - start);
    if (end < text.size()) append_utf8(0xFFFD, valid);
    start = end + 1;
  }
  return valid;
}

std::string applied(const Lowercase&, const std::string& text) {
  std::string lower;
  for_each_character(text, [&](char32_t c, std::string_view) {
    in_lower_case(c, [&](char32_t to) { append_utf8(to, lower); });
  });
  return lower;
}

std::string applied(const Strip& strip, const std::string& text) {
  std::size_t first = strip.left ? text.size() : 0;
  std::size_t end = strip.right ? 0 : text.size();
  std::size_t place = 0;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (!bert_character(c).space) {
      first = std::min(first, place);
      end = std::max(end, place + bytes.size());
    }
    place += bytes.size();
  });
  return first < end ? text.substr(first, end - first) : std::string();
}

std::string applied(const Precompiled& precompiled, const std::string& text) {
  const Charsmap& map = precompiled.map;
  const std::string_view whole = text;
  std::string mapped;
  mapped.reserve(text.size());
  const auto put = [&](std::string_view part) { mapped += map.shortest(part).value_or(part); };
  for (std::size_t i = 0; i < whole.size();) {
    const bool is_alone = is_graphic(whole[i]) && i + 1 < whole.size() && is_graphic(whole[i + 1]);
    const std::size_t length = is_alone ? 1 : grapheme_length(whole.substr(i));
    std::optional<std::string_view> replacement;
    if (length < kShortGrapheme) replacement = map.shortest(whole.substr(i, length));
    if (replacement) {
      mapped += *replacement;
    } else {
      for_each_character(whole.substr(i, length),
                         [&](char32_t, std::string_view bytes) { put(bytes); });
    }
    i += length;
  }
  return mapped;
}

std::string applied(const ReplaceSpaces& replace, const std::string& text) {
  std::string replaced;
  replaced.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = std::min(text.find_first_not_of(' ', i), text.size());
    if (end - i > 1)
      replaced += replace.content;
    else
      replaced.append(text, i, end - i);
    i = std::min(text.find(' ', end), text.size());
    replaced.append(text, end, i - end);
  }
  return replaced;
}

std::string applied(const ReplaceWhiteSpace&, const std::string& text) {
  std::string replaced;
  replaced.reserve(text.size());
  std::string_view held;  // a white space that may stay
  int spaces = 0;
  const auto end_run = [&] {
    const bool stays = spaces == 1 && held != "\n" && held != "\r" && held != "\t";
    if (spaces > 0) replaced += stays ? held : " ";
    spaces = 0;
  };
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (bert_character(c).space) {
      held = bytes;
      ++spaces;
      return;
    }
    end_run();
    replaced += bytes;
  });
  end_run();
  return replaced;
}

std::string applied(const Compose&, const std::string& text) {
  const auto is_ascii = [](unsigned char c) { return c < 0x80; };
  if (std::ranges::all_of(text, is_ascii)) return text;
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, std::free);
  if (size < 0) throw std::bad_alloc();  // the text is valid
  return {reinterpret_cast<const char*>(composed), static_cast<std::size_t>(size)};
}

/// Returns the added tokens that are searched before (false) or after normalisation; the latter are
/// normalised themselves.
std::vector<AddedToken> added_of(const UnigramDefinition& definition, bool is_normalized) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : definition.added) {
    if (token.normalized != is_normalized) continue;
    if (is_normalized) token.content = normalized(definition, token.content);
    token.normalized = false;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

std::string normalized(const UnigramDefinition& definition, std::string_view text) {
  std::string result = valid_utf8(text);
  for (const NormalizerStep& step : definition.normalizer)
    result = std::visit([&](const auto& kind) { return applied(kind, result); }, step);
  return result;
}

UnigramTokenizer::UnigramTokenizer(UnigramDefinition definition)
    : definition_(std::move(definition)),
      raw_(added_of(definition_, false)),
      normalized_(added_of(definition_, true)) {
  const std::vector<std::string>& names = definition_.names;
  for (std::size_t id = 0; id < definition_.scores.size(); ++id)
    by_name_.push_back(static_cast<std::int32_t>(id));
  const auto name_of = [&](std::int32_t id) -> const std::string& {
    return names[static_cast<std::size_t>(id)];
  };
  std::ranges::sort(by_name_, {}, name_of);
  for (const std::int32_t id : by_name_)
    ++first_with_byte_[static_cast<std::size_t>(static_cast<unsigned char>(name_of(id)[0])) + 1];
  for (std::size_t byte = 0; byte < 256; ++byte)
    first_with_byte_[byte + 1] += first_with_byte_[byte];
  unknown_score_ = std::ranges::min(definition_.scores) - kUnknownPenalty;
  may_cut_ = may_cut_at_spaces();
}

void UnigramTokenizer::encode_to(std::string_view text, std::vector<std::int32_t>& ids) const {
  raw_.encode(text, ids, [&](std::string_view plain) { encode_part(plain, ids); });
}

void UnigramTokenizer::encode_part(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  const PieceMemories::Loan memory(memories_);
  const std::string normal = normalized(definition_, text);
  normalized_.encode(normal, ids, [&](std::string_view plain) {
    if (!definition_.split_by_punct) return encode_words(plain, *memory, ids);
    std::size_t start = 0, place = 0;
    for_each_character(plain, [&](char32_t c, std::string_view bytes) {
      if (bert_character(c).punctuation) {
        encode_words(plain.substr(start, place - start), *memory, ids);
        encode_words(bytes, *memory, ids);
        start = place + bytes.size();
      }
      place += bytes.size();
    });
    encode_words(plain.substr(start), *memory, ids);
  });
}

void UnigramTokenizer::encode_words(std::string_view text, PieceMemory& memory,
                                    std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  std::string word;
  const auto end_word = [&] {
    if (word.empty()) return;
    if (word.size() > kLongestRememberedWord) {
      encode_word(word, ids);
    } else if (!memory.recall(word, ids)) {
      const std::size_t before = ids.size();
      encode_word(word, ids);
      memory.remember(word, std::span<const std::int32_t>(ids).subspan(before));
    }
    word.clear();
  };
  const bool begins_with_space = text[0] == ' ' || text.starts_with(kSpace);
  if (definition_.prefix_space && !begins_with_space) word = kSpace;
  for (std::size_t i = 0; i < text.size();) {
    const bool is_space = text[i] == ' ';
    if (is_space || text.substr(i).starts_with(kSpace)) {
      end_word();
      word = kSpace;
      i += is_space ? 1 : kSpace.size();
    } else {
      word += text[i++];
    }
  }
  end_word();
}

void UnigramTokenizer::encode_word(std::string_view word, std::vector<std::int32_t>& ids) const {
  struct Best {
    double score = 0;
    std::int32_t id = -1;       // of the last piece
    std::ptrdiff_t start = -1;  // of the last piece; -1: nothing ends here
  };
  std::vector<Best> best(word.size() + 1);
  const auto offer = [&](std::size_t start, std::size_t end, std::int32_t id, double score) {
    const double sum = score + best[start].score;
    if (best[end].start >= 0 && !(sum > best[end].score)) return;
    best[end] = {.score = sum, .id = id, .start = static_cast<std::ptrdiff_t>(start)};
  };
  const auto name_of = [&](std::uint32_t index) -> const std::string& {
    return definition_.names[static_cast<std::size_t>(by_name_[index])];
  };
  for (std::size_t start = 0; start < word.size();) {
    char32_t ignored = 0;
    const std::size_t character = utf8_sequence(word.substr(start), ignored);
    const auto first_byte = static_cast<std::size_t>(static_cast<unsigned char>(word[start]));
    // Names in [low, high) begin with the text from `start` to `end`.
    std::uint32_t low = first_with_byte_[first_byte], high = first_with_byte_[first_byte + 1];
    bool has_character = false;
    for (std::size_t length = 1; low < high; ++length) {
      if (name_of(low).size() == length) {
        const std::int32_t id = by_name_[low++];
        offer(start, start + length, id, definition_.scores[static_cast<std::size_t>(id)]);
        has_character |= length == character;
      }
      if (start + length == word.size()) break;
      const auto byte = static_cast<unsigned char>(word[start + length]);
      const auto byte_of = [&](std::int32_t id) {
        return static_cast<unsigned char>(definition_.names[static_cast<std::size_t>(id)][length]);
      };
      const auto first = by_name_.begin() + low, last = by_name_.begin() + high;
      const auto from =
          std::partition_point(first, last, [&](std::int32_t id) { return byte_of(id) < byte; });
      const auto to =
          std::partition_point(from, last, [&](std::int32_t id) { return byte_of(id) == byte; });
      low = static_cast<std::uint32_t>(from - by_name_.begin());
      high = static_cast<std::uint32_t>(to - by_name_.begin());
    }
    if (!has_character) offer(start, start + character, definition_.unknown, unknown_score_);
    start += character;
  }

  const std::size_t before = ids.size();
  const auto put_unknown = [&](std::size_t start, std::size_t end) {
    // A run of unknown characters is looked up as a whole: it may be the name of a token.
    const std::string_view run = word.substr(start, end - start);
    const auto found =
        std::ranges::lower_bound(by_name_, run, {}, [&](std::int32_t id) -> std::string_view {
          return definition_.names[static_cast<std::size_t>(id)];
        });
    const bool is_name =
        found != by_name_.end() && definition_.names[static_cast<std::size_t>(*found)] == run;
    ids.push_back(is_name ? *found : definition_.unknown);
  };
  std::optional<std::size_t> unknown_end;  // of a run of unknown characters
  std::size_t end = word.size();
  while (end > 0) {
    const Best& last = best[end];
    const auto start = static_cast<std::size_t>(last.start);
    if (last.id == definition_.unknown) {
      if (!unknown_end) unknown_end = end;
    } else {
      if (unknown_end) put_unknown(end, *unknown_end);
      unknown_end.reset();
      ids.push_back(last.id);
    }
    end = start;
  }
  if (unknown_end) put_unknown(0, *unknown_end);
  std::reverse(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
}

std::string UnigramTokenizer::decode(std::span<const std::int32_t> ids) const {
  return text_of_pieces(definition_.names, ids, definition_.prefix_space);
}

/// Returns true if a space between two graphic ASCII characters is always a space between words.
bool UnigramTokenizer::may_cut_at_spaces() const {
  if (raw_.have_space() || normalized_.have_space()) return false;
  for (const NormalizerStep& step : definition_.normalizer) {
    if (const auto* strip = std::get_if<Strip>(&step))
      // A space before an added token would begin a part, where only its left end is stripped.
      if (strip->left && (!definition_.prefix_space || !strip->right)) return false;
    if (const auto* precompiled = std::get_if<Precompiled>(&step))
      for (char c = ' '; c < 0x7F; ++c)
        if (precompiled->map.shortest({&c, 1}).value_or(std::string_view(&c, 1)) !=
            std::string_view(&c, 1))
          return false;
  }
  return true;
}

std::size_t UnigramTokenizer::safe_cut(std::string_view text) const {
  if (!may_cut_ || text.size() < 3) return 0;
  // A space before punctuation that is separated is a word, unless it begins the text.
  const auto may_follow = [&](char c) {
    return is_graphic(c) && !(definition_.split_by_punct &&
                              bert_character(static_cast<unsigned char>(c)).punctuation);
  };
  for (std::size_t i = text.size() - 1; i-- > 1;)
    if (text[i] == ' ' && is_graphic(text[i - 1]) && may_follow(text[i + 1])) return i;
  return 0;
}

std::string UnigramTokenizer::identity() const {
  TokenIdentity identity;
  identity.put(std::string("Unigram"));
  identity.put_all(definition_.names);
  identity.put(definition_.scores.size());
  for (const double score : definition_.scores) identity.put(std::bit_cast<std::uint64_t>(score));
  identity.put_added(definition_.added);
  identity.put(static_cast<std::uint64_t>(std::int64_t{definition_.unknown}));
  identity.put((definition_.split_by_punct ? 1u : 0u) | (definition_.prefix_space ? 2u : 0u));
  for (const NormalizerStep& step : definition_.normalizer) {
    identity.put(step.index());
    if (const auto* strip = std::get_if<Strip>(&step))
      identity.put((strip->left ? 1u : 0u) | (strip->right ? 2u : 0u));
    if (const auto* precompiled = std::get_if<Precompiled>(&step))
      identity.put(precompiled->map.bytes());
    if (const auto* replace = std::get_if<ReplaceSpaces>(&step)) identity.put(replace->content);
  }
  return identity.bytes();
}

std::string text_of_pieces(const std::vector<std::string>& names, std::span<const std::int32_t> ids,
                           bool prefix_space) {
  std::string text;
  bool is_first = true;
  for (const std::int32_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= names.size()) continue;
    const std::string_view name = names[static_cast<std::size_t>(id)];
    for (std::size_t i = 0; i < name.size();) {
      if (!name.substr(i).starts_with(kSpace)) {
        text += name[i++];
        continue;
      }
      if (!is_first || !prefix_space) text += ' ';
      i += kSpace.size();
    }
    is_first = false;
  }
  return text;
}

}  // namespace deltapipe
