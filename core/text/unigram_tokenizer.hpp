// SPDX-License-Identifier: BSD-3-Clause
// Unigram tokenizers as the tokenizers library computes them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/text/added_tokens.hpp"
#include "core/text/charsmap.hpp"
#include "core/text/piece_memory.hpp"
#include "core/text/tokenizer.hpp"

namespace deltapipe {

/// Steps of a normalizer, which have the names of the tokenizers library.
struct Lowercase {};
/// Removes White_Space from the ends.
struct Strip {
  bool left = true, right = true;
};
/// Replaces graphemes and characters by a character map.
struct Precompiled {
  Charsmap map;
};
/// Replaces two or more spaces by `content`.
struct ReplaceSpaces {
  std::string content = " ";
};
/// Replaces two or more White_Space, and each line feed, carriage return and tab, by a space.
struct ReplaceWhiteSpace {};
/// Composes characters canonically (NFC of Unicode).
struct Compose {};
using NormalizerStep =
    std::variant<Lowercase, Strip, Precompiled, ReplaceSpaces, ReplaceWhiteSpace, Compose>;

/// Description of a Unigram tokenizer in its files.
struct UnigramDefinition {
  std::vector<std::string> names;  ///< by id; empty: no such id
  std::vector<double> scores;      ///< by id: those of the model; added tokens follow
  std::vector<AddedToken> added;   ///< the normalized ones differ in normalised text
  std::int32_t unknown = -1;
  std::vector<NormalizerStep> normalizer;
  bool split_by_punct = false;  ///< punctuation is separated before words are
  bool prefix_space = true;     ///< every part of a text begins with a space
  TextMarks marks;
  std::vector<std::string> warnings;  ///< signs of damage in the files
};

/// Returns a text as the pieces are searched in it, but with its spaces.
std::string normalized(const UnigramDefinition& definition, std::string_view text);

/// Composes each word of the pieces with the largest sum of scores, in double precision (Kudo 2018,
/// arXiv 1804.10959). A word begins with a space, which is written as U+2581.
class UnigramTokenizer final : public Tokenizer {
 public:
  explicit UnigramTokenizer(UnigramDefinition definition);

  void encode_to(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::size_t safe_cut(std::string_view text) const override;
  int vocabulary_size() const override { return static_cast<int>(definition_.names.size()); }
  TextMarks marks() const override { return definition_.marks; }
  const std::vector<std::string>& warnings() const override { return definition_.warnings; }

 private:
  std::string identity() const override;
  void encode_part(std::string_view text, std::vector<std::int32_t>& ids) const;
  void encode_words(std::string_view text, PieceMemory& memory,
                    std::vector<std::int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) const;
  bool may_cut_at_spaces() const;

  UnigramDefinition definition_;
  AddedTokens raw_;                    ///< added tokens, searched before normalisation
  AddedTokens normalized_;             ///< and after it
  std::vector<std::int32_t> by_name_;  ///< the model's ids, sorted by their names
  std::array<std::uint32_t, 257> first_with_byte_{};  ///< indices in by_name_, by the first byte
  double unknown_score_ = 0;
  bool may_cut_ = false;
  mutable PieceMemories memories_;
};

/// Returns the text of pieces, in which U+2581 is a space; the first piece loses its own if
/// `prefix_space` is set.
std::string text_of_pieces(const std::vector<std::string>& names, std::span<const std::int32_t> ids,
                           bool prefix_space);

}  // namespace deltapipe
