// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/added_tokens.hpp"

#include <algorithm>
#include <utility>

#include "core/base/error.hpp"

namespace deltapipe {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::ranges::stable_sort(tokens_, std::ranges::greater{},
                           [](const AddedToken& token) { return token.content.size(); });
  for (const AddedToken& token : tokens_) {
    starts_[token.normalized ? 1 : 0][static_cast<unsigned char>(token.content[0])] = true;
    for (const char c : token.content) have_space_ |= c == ' ' || c == '\n';
  }
}

const AddedToken* AddedTokens::find(std::string_view text, bool normalized) const {
  if (!starts_[normalized ? 1 : 0][static_cast<unsigned char>(text[0])]) return nullptr;
  for (const AddedToken& token : tokens_)
    if (token.normalized == normalized && text.starts_with(token.content)) return &token;
  return nullptr;
}

std::int32_t AddedTokens::id_of(const AddedToken& token) {
  if (token.id < 0)
    throw UserError({.what = "the text has a token that the tokenizer's files name without an id",
                     .value = token.content,
                     .remedy = "add it to added_tokens.json, or remove it from the text"});
  return token.id;
}

}  // namespace deltapipe
