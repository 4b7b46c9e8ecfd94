// SPDX-License-Identifier: BSD-3-Clause
// Unigram tokenizers as libsentencepiece computes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/added_tokens.hpp"
#include "core/text/sentencepiece_model.hpp"
#include "core/text/tokenizer.hpp"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace deltapipe {

/// Description of a SentencePiece tokenizer in its files.
struct SentencePieceDefinition {
  std::string file;  ///< the spm.model, for messages
  SentencePieceModel model;
  std::vector<std::string> names;  ///< by id: the pieces, then added tokens; empty: no such id
  std::vector<AddedToken> added;   ///< none of them normalized
  TextMarks marks;
  std::vector<std::string> warnings;  ///< signs of damage in the files
};

/// Composes a text of the pieces with the largest sum of scores. The library sums in single
/// precision over the whole text, so that ids depend on text far away where two sums are close.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  /// Throws UserError for a model that the library refuses.
  explicit SentencePieceTokenizer(SentencePieceDefinition definition);
  ~SentencePieceTokenizer() override;

  /// Throws UserError for a text whose positions the library cannot count.
  void encode_to(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::size_t safe_cut(std::string_view) const override { return 0; }
  int vocabulary_size() const override { return static_cast<int>(definition_.names.size()); }
  TextMarks marks() const override { return definition_.marks; }
  const std::vector<std::string>& warnings() const override { return definition_.warnings; }

 private:
  std::string identity() const override;
  void encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const;

  SentencePieceDefinition definition_;
  AddedTokens added_;
  std::size_t longest_text_ = 0;  ///< bytes
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace deltapipe
