// SPDX-License-Identifier: BSD-3-Clause
// Tokens that are recognised in a text as a whole, before anything else happens to it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltapipe {

struct AddedToken {
  std::string content;
  /// -1: a name without an id. Texts must not contain it, because transformers would invent an id.
  std::int32_t id = 0;
  bool special = true;
  /// True: searched only in the text between tokens that are not normalized, as in the tokenizers
  /// library. It has no other effect.
  bool normalized = false;
};

/// Finds added tokens in texts: the longest at each place.
class AddedTokens {
 public:
  /// No content is empty.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// Appends the ids of added tokens; plain(text) encodes the text between them.
  template <class Plain>
  void encode(std::string_view text, std::vector<std::int32_t>& ids, const Plain& plain) const {
    encode_kind(text, false, ids,
                [&](std::string_view rest) { encode_kind(rest, true, ids, plain); });
  }

  /// Returns true if a token contains a space or a line feed.
  bool have_space() const { return have_space_; }

 private:
  const AddedToken* find(std::string_view text, bool normalized) const;
  /// Returns the token's id. Throws UserError for a name without an id.
  static std::int32_t id_of(const AddedToken& token);

  template <class Between>
  void encode_kind(std::string_view text, bool normalized, std::vector<std::int32_t>& ids,
                   const Between& between) const {
    std::size_t plain = 0;  // start of the text since the last added token
    for (std::size_t i = 0; i < text.size();) {
      const AddedToken* const token = find(text.substr(i), normalized);
      if (token == nullptr) {
        ++i;
        continue;
      }
      between(text.substr(plain, i - plain));
      ids.push_back(id_of(*token));
      i += token->content.size();
      plain = i;
    }
    between(text.substr(plain));
  }

  std::vector<AddedToken> tokens_;                 // longest first
  std::array<std::array<bool, 256>, 2> starts_{};  // indexed by `normalized` and first byte
  bool have_space_ = false;
};

}  // namespace deltapipe
