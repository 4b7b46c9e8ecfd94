// SPDX-License-Identifier: BSD-3-Clause
// The bytes that a tokenizer's hash is made of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/text/added_tokens.hpp"

namespace deltapipe {

class TokenIdentity {
 public:
  void put(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(number >> shift);
  }
  void put(const std::string& text) {
    put(text.size());
    bytes_ += text;
  }
  void put_all(const std::vector<std::string>& texts) {
    put(texts.size());
    for (const std::string& text : texts) put(text);
  }
  /// The order of the tokens does not count.
  void put_added(std::vector<AddedToken> tokens) {
    std::ranges::sort(tokens, {}, &AddedToken::id);
    for (const AddedToken& token : tokens) {
      put(static_cast<std::uint64_t>(token.id) << 1 | (token.normalized ? 1 : 0));
      put(token.content);
    }
  }
  std::string bytes() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

}  // namespace deltapipe
