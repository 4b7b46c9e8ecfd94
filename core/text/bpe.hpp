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

namespace deltapipe {

/// A token that is recognised in the text before pre-tokenisation.
struct AddedToken {
  std::string content;
  /// -1: a name without an id. Texts must not contain it, because transformers would invent an id.
  std::int32_t id = 0;
  bool special = true;
  /// True: searched only in the text between tokens that are not normalized, as in the tokenizers
  /// library. It has no other effect, because there is no normaliser.
  bool normalized = false;
};

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

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const;
};
template <class Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

/// Ids of short pieces that an encoder has seen, so that it does not merge them again. Each thread
/// has its own PieceMemory.
class PieceMemory {
 public:
  /// Appends the ids of `piece`, if they are known.
  bool recall(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void remember(std::string_view piece, std::span<const std::int32_t> ids);

 private:
  struct Place {
    std::uint32_t first;  ///< index in ids_
    std::uint32_t count;
  };
  StringMap<Place> places_;
  std::vector<std::int32_t> ids_;
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
