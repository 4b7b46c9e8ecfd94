// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/byte_level_tokenizer.hpp"

#include <algorithm>
#include <utility>

#include "core/text/byte_level_files.hpp"
#include "core/text/pretokenizer.hpp"
#include "core/text/token_identity.hpp"

namespace deltapipe {

ByteLevelTokenizer::ByteLevelTokenizer(TokenizerDefinition definition)
    : definition_(std::move(definition)),
      bytes_(token_bytes(definition_)),
      added_(definition_.added),
      encoder_(definition_) {}

void ByteLevelTokenizer::encode_to(std::string_view text, std::vector<std::int32_t>& ids) const {
  const PieceMemories::Loan memory(memories_);
  added_.encode(text, ids, [&](std::string_view plain) { encode_plain(plain, *memory, ids); });
}

void ByteLevelTokenizer::encode_plain(std::string_view text, PieceMemory& memory,
                                      std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  std::string prefixed;
  if (definition_.add_prefix_space && text[0] != ' ') {
    prefixed = " ";
    prefixed += text;
    text = prefixed;
  }
  PieceReader reader(text);
  std::string_view piece;
  while (reader.next(piece)) encoder_.encode(piece, memory, ids);
}

std::string ByteLevelTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < vocabulary_size()) text += bytes_[static_cast<std::size_t>(id)];
  }
  return text;
}

std::size_t ByteLevelTokenizer::safe_cut(std::string_view text) const {
  if (added_.have_space()) return 0;
  // In a piece, no space follows another symbol, and a piece depends only on the spaces after it.
  const auto blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  for (std::size_t i = text.size(); i-- > 1;) {
    const bool cut = text[i] == ' ' || (text[i] == '\n' && !definition_.add_prefix_space);
    const char before = text[i - 1];
    if (cut && static_cast<unsigned char>(before) < 0x80 && !blank(before)) return i;
  }
  return 0;
}

std::string ByteLevelTokenizer::identity() const {
  TokenIdentity identity;
  identity.put_all(definition_.names);
  identity.put(definition_.merges.size());
  for (const auto& [left, right] : definition_.merges) identity.put(pair_key(left, right));
  identity.put_added(definition_.added);
  identity.put(static_cast<std::uint64_t>(std::int64_t{definition_.end_of_text}));
  identity.put((definition_.add_prefix_space ? 1u : 0u) | (definition_.ignore_merges ? 2u : 0u));
  return identity.bytes();
}

TextMarks ByteLevelTokenizer::marks() const {
  const std::int32_t end = definition_.end_of_text;
  return {.begin = end, .separator = end, .padding = std::max(end, 0)};
}

void ByteLevelTokenizer::save(const std::string& directory) const {
  save_byte_level_files(definition_, directory);
}

}  // namespace deltapipe
