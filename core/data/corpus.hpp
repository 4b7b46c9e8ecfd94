// SPDX-License-Identifier: BSD-3-Clause
// Documents of a corpus: text files, JSON lines and HDF5 files of token ids.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/records.hpp"
#include "core/data/settings.hpp"
#include "core/text/vocabulary.hpp"

namespace deltapipe {

/// Receives a corpus piece by piece. A document consists of all pieces up to its end_document().
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void append(std::span<const std::int32_t> ids) = 0;
  virtual void end_document() = 0;
  /// Called once for a file that has such lines.
  virtual void skip_lines(const SkippedLines&) {}
};

/// Returns the format of `file`: `asked` or, for DataFormat::automatic, that of the suffix (.txt;
/// .jsonl; .csv; .tsv; .h5, .hdf5). Throws UserError for another suffix, for a format that
/// contradicts the suffix, and for files that are not regular.
DataFormat data_format(const std::string& file, DataFormat asked);

/// Reads one file into `sink`; large files are read in pieces. text: the file is one document.
/// jsonl: a line is one document, its `jsonl_fields` joined by an empty line. hdf5: a token file
/// (token_file.hpp). Throws UserError with file and line for unreadable content, for text without a
/// tokenizer, and for ids outside the vocabulary. `threads` threads tokenise text; the ids do not
/// depend on their number.
void read_tokens(const std::string& file, const DataSettings& settings,
                 const Vocabulary& vocabulary, TokenSink& sink, int threads = 1);

/// The tokens of a prompt followed by its answer and the answer's end.
struct PromptWithAnswer {
  std::vector<std::int32_t> tokens;
  std::size_t first_of_answer = 0;  ///< at least 1
};

/// Calls `take` for every line of a file of prompts with answers (settings.answers). Prompt, answer
/// and end are tokenised as one text. It must begin with the tokens of the prompt alone, because a
/// model continues these. Other lines, and lines of more than sequence_length inputs, are a
/// UserError with file and line, or are skipped if settings.bad_lines says so.
SkippedLines read_answers(const std::string& file, const DataSettings& settings,
                          const Vocabulary& vocabulary, int sequence_length,
                          const std::function<void(const PromptWithAnswer&)>& take);

/// Returns true if there are training files and all data files are token files.
bool holds_tokens_only(const DataSettings& settings);

/// Calls `take` with the text of every document of `file` (text or jsonl; hdf5 is a UserError).
void read_texts(const std::string& file, const DataSettings& settings,
                const std::function<void(std::string_view)>& take);

/// Returns the texts of all settings.train files, for training a tokenizer. Throws UserError if
/// there is no text at all.
std::vector<std::string> training_texts(const DataSettings& settings);

}  // namespace deltapipe
