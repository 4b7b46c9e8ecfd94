// SPDX-License-Identifier: BSD-3-Clause
// Byte-level BPE with GPT-2's pre-tokenisation.
#pragma once

#include <string>
#include <vector>

#include "core/text/added_tokens.hpp"
#include "core/text/bpe.hpp"
#include "core/text/piece_memory.hpp"
#include "core/text/tokenizer.hpp"

namespace deltapipe {

/// decode(encode(bytes)) == bytes for every byte string (unless the files ask for
/// add_prefix_space). A byte outside of valid UTF-8 sequences counts as one symbol that is not a
/// letter, digit or space (as with Python's errors="surrogateescape").
class ByteLevelTokenizer final : public Tokenizer {
 public:
  explicit ByteLevelTokenizer(TokenizerDefinition definition);

  void encode_to(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::size_t safe_cut(std::string_view text) const override;
  int vocabulary_size() const override { return static_cast<int>(bytes_.size()); }
  std::int32_t end_of_text() const override { return definition_.end_of_text; }
  /// Returns the end-of-text token for all marks: a byte-level BPE has no others.
  TextMarks marks() const override;
  const std::vector<std::string>& warnings() const override { return definition_.warnings; }
  void save(const std::string& directory) const override;

 private:
  std::string identity() const override;
  void encode_plain(std::string_view text, PieceMemory& memory,
                    std::vector<std::int32_t>& ids) const;

  TokenizerDefinition definition_;
  std::vector<std::string> bytes_;  // of every id
  AddedTokens added_;
  BpeEncoder encoder_;
  mutable PieceMemories memories_;
};

}  // namespace deltapipe
