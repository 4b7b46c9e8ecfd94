// SPDX-License-Identifier: BSD-3-Clause
// Token files: HDF5 files with a corpus as token ids.
//
// tokens            [N] integer: the ids of all documents, one after another
// document_offsets  [D] integer, optional: first token of every document, ascending from 0; a last
//                   entry equal to N is allowed. Without it the file is one document.
// Attributes of the file, all optional: vocabulary_size (ids are below it), end_of_text (the id
// that ends a document; -1: none), tokenizer (Tokenizer::hash() of the tokenizer of the ids),
// source (the text files), source_revision.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/data/corpus.hpp"
#include "core/files/hdf5.hpp"
#include "core/files/replacement.hpp"

namespace deltapipe {

/// The attributes of a token file.
struct TokenFileInfo {
  std::optional<int> vocabulary_size;
  std::optional<int> end_of_text;
  std::string tokenizer;  ///< empty: unknown
};

/// Reads the attributes. Throws UserError for a file that is not HDF5 or has invalid attributes.
TokenFileInfo read_token_file_info(const std::string& path);

/// Returns the vocabulary that several token files share, for runs without a tokenizer. Files with
/// vocabulary_size, end_of_text or tokenizer must agree on it. At least one must have
/// vocabulary_size, unless `model_size`, the size otherwise, is not 0. Throws UserError that names
/// the files.
Vocabulary shared_vocabulary(const std::vector<std::string>& files, int model_size);

/// Reads a token file into `sink`, in blocks. Throws UserError for ids outside the vocabulary and
/// for a file that another tokenizer made.
void read_token_file(const std::string& path, const Vocabulary& vocabulary, TokenSink& sink);

/// Writes a token file in bounded memory; skips documents without tokens. The file gets its name in
/// close().
class TokenFileWriter : public TokenSink {
 public:
  TokenFileWriter(const std::string& path, const Tokenizer& tokenizer,
                  const std::vector<std::string>& sources);

  void append(std::span<const std::int32_t> ids) override;
  void end_document() override;
  void skip_lines(const SkippedLines& lines) override { skipped_.push_back(lines); }
  /// Gives the file its name; UserError if it cannot be written.
  void close();

  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t documents() const { return documents_; }
  const std::vector<SkippedLines>& skipped() const { return skipped_; }

 private:
  void flush_ids();
  void flush_offsets();
  AtomicFile target_;
  hdf5::File file_;
  std::optional<hdf5::Dataset> ids_data_, offsets_data_;
  std::vector<std::int32_t> ids_;
  std::vector<std::int64_t> offsets_;
  std::uint64_t tokens_ = 0, documents_ = 0, document_start_ = 0;
  std::vector<SkippedLines> skipped_;
};

}  // namespace deltapipe
