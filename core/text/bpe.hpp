// SPDX-License-Identifier: BSD-3-Clause
// Byte-pair merges of single pieces, and the content of tokenizer files.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/text/added_tokens.hpp"
#include "core/text/piece_memory.hpp"

namespace deltapipe {

/// Description of a byte-level BPE tokenizer in its files.
struct TokenizerDefinition {
  std::vector<std::string> names;  ///< names by id, as in vocab.json; empty: no such id
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  ///< ids of both parts, by rank
  std::vector<AddedToken> added;
  std::int32_t end_of_text = -1;
  bool add_prefix_space = false;
  bool ignore_merges = false;         ///< true if whole pieces that are tokens need no merges
  std::vector<std::string> warnings;  ///< signs of damage in the files
};

/// Returns the bytes of every id.
std::vector<std::string> token_bytes(const TokenizerDefinition& definition);

/// Packs a pair of ids into a hash key.
inline std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
         static_cast<std::uint32_t>(right);
}

/// Mixes the bits of keys, whose low bits are often equal.
struct PairHash {
  std::size_t operator()(std::uint64_t key) const {
    key *= 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>(key ^ (key >> 32));
  }
};

/// Merges the pairs of a piece, lowest rank first and leftmost first among equals.
class BpeEncoder {
 public:
  /// Every merged pair must have an id; the readers of tokenizer files guarantee this.
  explicit BpeEncoder(const TokenizerDefinition& definition);

  /// Appends the ids of `piece`, which do not depend on the memory. Throws UserError for a byte
  /// without a token, which the tokenizers library would drop.
  void encode(std::string_view piece, PieceMemory& memory, std::vector<std::int32_t>& ids) const;

 private:
  struct Merge {
    std::int32_t rank;
    std::int32_t id;
  };

  std::int32_t byte_id(char c) const;
  const Merge* find(std::int32_t left, std::int32_t right) const;
  void merge_short(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void merge_long(std::string_view piece, std::vector<std::int32_t>& ids) const;

  std::array<std::int32_t, 256> byte_ids_;  ///< -1: the vocabulary lacks the byte
  std::unordered_map<std::uint64_t, Merge, PairHash> merges_;
  StringMap<std::int32_t> whole_pieces_;  ///< filled if the definition ignores merges
};

}  // namespace deltapipe
