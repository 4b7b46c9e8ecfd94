// SPDX-License-Identifier: BSD-3-Clause
// Text to token ids and back: GPT-2's byte-level BPE, BERT's WordPiece and DeBERTa's Unigram.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltapipe {

/// Tokens around the texts of a sample: begin text separator, or begin text separator text
/// separator. -1: none.
struct TextMarks {
  std::int32_t begin = -1;
  std::int32_t separator = -1;
  std::int32_t padding = 0;
};

/// A tokenizer of a Hugging Face directory: byte-level BPE with GPT-2's pre-tokenisation, WordPiece
/// with BERT's, or Unigram with DeBERTa-v2's. For valid UTF-8 the ids are those of transformers'
/// GPT2TokenizerFast, BertTokenizerFast and DebertaV2TokenizerFast without marks; with an spm.model
/// alone, those of DebertaV2Tokenizer (version 4). Added tokens such as <|endoftext|> and [SEP] are
/// recognised in the text. All const member functions may be called from several threads, which do
/// not wait for each other.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Reads a tokenizer.json, or a directory with tokenizer.json, vocab.json + merges.txt,
  /// encoder.json + vocab.bpe, vocab.txt, spm.model or spiece.model (the first of these that
  /// exists). Throws UserError for missing, malformed or other kinds of tokenizers.
  static std::unique_ptr<const Tokenizer> load(const std::string& path);

  /// Learns a byte-level BPE from `documents`, by merging the most frequent pair first, the lower
  /// ids on ties; pairs that occur only once are not merged. Ids: 256 bytes, then merges, then
  /// <|endoftext|>. The vocabulary is smaller than asked for if the text has no more repeated
  /// pairs. Throws UserError if vocabulary_size < 257.
  static std::unique_ptr<const Tokenizer> train(const std::vector<std::string_view>& documents,
                                                int vocabulary_size);

  /// Writes a byte-level BPE into `directory`, which is created if missing: vocab.json, merges.txt,
  /// tokenizer.json and tokenizer_config.json. transformers' GPT2TokenizerFast loads them with the
  /// same ids.
  virtual void save(const std::string& directory) const;

  /// Returns the ids of `text`, without marks. Throws UserError for a byte that a byte-level
  /// vocabulary lacks.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Appends the ids of `text` to `ids`.
  virtual void encode_to(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  /// Returns the text of `ids`: the encoded bytes for a byte-level BPE, normalised words with
  /// spaces between them for WordPiece, normalised text for Unigram. Ids outside the
  /// vocabulary, which a model with a padded vocabulary can draw, have no text, as in transformers.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;

  /// Returns the largest cut <= text.size() at which two calls give the same ids as one, whatever
  /// text follows; 0 if there is no such cut.
  virtual std::size_t safe_cut(std::string_view text) const = 0;

  /// Returns the largest id + 1.
  virtual int vocabulary_size() const = 0;
  /// Returns a hash of everything that ids depend on, as 32 hexadecimal digits. Tokenizers with
  /// equal hashes give equal ids for every text.
  std::string hash() const;
  /// Returns the id of the end-of-text token; -1 if the tokenizer lacks it.
  virtual std::int32_t end_of_text() const { return -1; }
  /// Returns the tokens around texts: [CLS] and [SEP] of WordPiece and Unigram, the end-of-text
  /// token of a byte-level BPE.
  virtual TextMarks marks() const = 0;
  /// Returns signs of damage in the files of the tokenizer.
  virtual const std::vector<std::string>& warnings() const = 0;

 private:
  /// Returns the bytes that ids depend on, in a form that no other tokenizer has.
  virtual std::string identity() const = 0;
};

}  // namespace deltapipe
