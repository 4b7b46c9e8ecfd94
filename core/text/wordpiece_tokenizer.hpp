// SPDX-License-Identifier: BSD-3-Clause
// BERT's WordPiece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/text/added_tokens.hpp"
#include "core/text/bert_words.hpp"
#include "core/text/piece_memory.hpp"
#include "core/text/tokenizer.hpp"

namespace deltapipe {

/// Description of a WordPiece tokenizer in its files.
struct WordPieceDefinition {
  std::vector<std::string> names;  ///< by id; empty: no such id
  std::vector<AddedToken> added;   ///< none of them normalized
  std::int32_t unknown = -1;       ///< id of words that the vocabulary cannot compose
  std::string prefix = "##";       ///< of pieces that continue a word
  std::size_t longest_word = 100;  ///< characters; longer words are unknown
  BertNormalizer normalizer;
  TextMarks marks;
  std::vector<std::string> warnings;  ///< signs of damage in the files
};

/// Composes each word of the longest pieces from its start (arXiv 1810.04805; Schuster and Nakajima
/// 2012). A word with a rest that no piece starts is unknown as a whole.
class WordPieceTokenizer final : public Tokenizer {
 public:
  explicit WordPieceTokenizer(WordPieceDefinition definition);

  void encode_to(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::size_t safe_cut(std::string_view text) const override;
  int vocabulary_size() const override { return static_cast<int>(definition_.names.size()); }
  TextMarks marks() const override { return definition_.marks; }
  const std::vector<std::string>& warnings() const override { return definition_.warnings; }

 private:
  std::string identity() const override;
  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) const;

  WordPieceDefinition definition_;
  AddedTokens added_;
  StringMap<std::int32_t> starts_;         // pieces that start a word
  StringMap<std::int32_t> continuations_;  // pieces that continue one, without their prefix
  std::size_t longest_piece_ = 0;          // bytes
  mutable PieceMemories memories_;
};

}  // namespace deltapipe
