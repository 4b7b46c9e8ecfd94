// SPDX-License-Identifier: BSD-3-Clause
// GPT-2's byte-level BPE: text to token ids and back, Hugging Face files in and out, training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltapipe {

/// Byte-level BPE with GPT-2's pre-tokenisation. decode(encode(bytes)) == bytes for every byte
/// string (unless the files ask for add_prefix_space). For valid UTF-8 the ids are those of
/// transformers' GPT2TokenizerFast. A byte outside of valid UTF-8 sequences counts as one symbol
/// that is not a letter, digit or space (as with Python's errors="surrogateescape"). Added tokens
/// such as <|endoftext|> are recognised in the text. All const member functions may be called from
/// several threads, which do not wait for each other.
class Tokenizer {
 public:
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Reads a tokenizer.json, or a directory with tokenizer.json, vocab.json + merges.txt, or
  /// encoder.json + vocab.bpe (the first of these that exists). Throws UserError for missing,
  /// malformed or other kinds of tokenizers.
  static Tokenizer load(const std::string& path);

  /// Learns merges from `documents`: the most frequent pair first, the lower ids on ties; pairs
  /// that occur only once are not merged. Ids: 256 bytes, then merges, then <|endoftext|>. The
  /// vocabulary is smaller than asked for if the text has no more repeated pairs. Throws UserError
  /// if vocabulary_size < 257.
  static Tokenizer train(const std::vector<std::string_view>& documents, int vocabulary_size);

  /// Writes vocab.json, merges.txt, tokenizer.json and tokenizer_config.json into `directory`,
  /// which is created if missing. transformers' GPT2TokenizerFast loads them with the same ids.
  void save(const std::string& directory) const;

  /// Returns the ids of `text`. Throws UserError for a byte that the vocabulary lacks.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Appends the ids of `text` to `ids`.
  void encode_to(std::string_view text, std::vector<std::int32_t>& ids) const;
  /// Returns the bytes of `ids`. Ids outside the vocabulary, which a model with a padded vocabulary
  /// can draw, have no text, as in transformers.
  std::string decode(std::span<const std::int32_t> ids) const;

  /// Returns the largest cut <= text.size() at which two calls give the same ids as one, whatever
  /// text follows; 0 if there is no such cut.
  std::size_t safe_cut(std::string_view text) const;

  /// Returns the largest id + 1.
  int vocabulary_size() const;
  /// Returns a hash of everything that ids depend on, as 32 hexadecimal digits. Tokenizers with
  /// equal hashes give equal ids for every text.
  std::string hash() const;
  /// Returns the id of the end-of-text token; -1 if the tokenizer lacks it.
  std::int32_t end_of_text() const;
  /// Returns signs of damage in the files of the tokenizer.
  const std::vector<std::string>& warnings() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deltapipe
