// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/wordpiece_tokenizer.hpp"

#include <algorithm>
#include <utility>

#include "core/text/token_identity.hpp"

namespace deltapipe {
namespace {

bool is_first_byte(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

}  // namespace

WordPieceTokenizer::WordPieceTokenizer(WordPieceDefinition definition)
    : definition_(std::move(definition)), added_(definition_.added) {
  for (std::size_t id = 0; id < definition_.names.size(); ++id) {
    const std::string& name = definition_.names[id];
    if (name.empty()) continue;
    longest_piece_ = std::max(longest_piece_, name.size());
    starts_.emplace(name, static_cast<std::int32_t>(id));
    if (name.starts_with(definition_.prefix))
      continuations_.emplace(name.substr(definition_.prefix.size()), static_cast<std::int32_t>(id));
  }
}

void WordPieceTokenizer::encode_to(std::string_view text, std::vector<std::int32_t>& ids) const {
  const PieceMemories::Loan memory(memories_);
  const auto encode = [&](std::string_view word) {
    if (word.size() > kLongestRememberedWord) return encode_word(word, ids);
    if ((*memory).recall(word, ids)) return;
    const std::size_t before = ids.size();
    encode_word(word, ids);
    (*memory).remember(word, std::span<const std::int32_t>(ids).subspan(before));
  };
  added_.encode(text, ids, [&](std::string_view plain) {
    for_each_bert_word(plain, definition_.normalizer, encode);
  });
}

void WordPieceTokenizer::encode_word(std::string_view word, std::vector<std::int32_t>& ids) const {
  const auto characters = static_cast<std::size_t>(std::ranges::count_if(word, is_first_byte));
  if (characters > definition_.longest_word) return ids.push_back(definition_.unknown);
  const std::size_t before = ids.size();
  for (std::size_t start = 0; start < word.size();) {
    const StringMap<std::int32_t>& pieces = start == 0 ? starts_ : continuations_;
    std::size_t end = std::min(word.size(), start + longest_piece_);
    auto found = pieces.end();
    for (; end > start; --end) {
      if (end < word.size() && !is_first_byte(word[end])) continue;
      found = pieces.find(word.substr(start, end - start));
      if (found != pieces.end()) break;
    }
    if (found == pieces.end()) {
      ids.resize(before);
      ids.push_back(definition_.unknown);
      return;
    }
    ids.push_back(found->second);
    start = end;
  }
}

std::string WordPieceTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocabulary_size()) continue;
    const std::string& name = definition_.names[static_cast<std::size_t>(id)];
    if (name.starts_with(definition_.prefix) && !text.empty()) {
      text += std::string_view(name).substr(definition_.prefix.size());
    } else {
      if (!text.empty() && !name.empty()) text += ' ';
      text += name;
    }
  }
  return text;
}

std::size_t WordPieceTokenizer::safe_cut(std::string_view text) const {
  if (added_.have_space()) return 0;
  for (std::size_t i = text.size(); i-- > 1;)
    if (text[i] == ' ' || text[i] == '\n') return i;
  return 0;
}

std::string WordPieceTokenizer::identity() const {
  TokenIdentity identity;
  identity.put(std::string("WordPiece"));
  identity.put_all(definition_.names);
  identity.put_added(definition_.added);
  identity.put(static_cast<std::uint64_t>(std::int64_t{definition_.unknown}));
  identity.put(definition_.prefix);
  identity.put(definition_.longest_word);
  const BertNormalizer& normalizer = definition_.normalizer;
  identity.put((normalizer.clean_text ? 1u : 0u) | (normalizer.handle_chinese_chars ? 2u : 0u) |
               (normalizer.strip_accents ? 4u : 0u) | (normalizer.lowercase ? 8u : 0u));
  return identity.bytes();
}

}  // namespace deltapipe
