// SPDX-License-Identifier: BSD-3-Clause
// Tokenizer files of Hugging Face and of OpenAI's GPT-2 release.
#pragma once

#include <string>
#include <vector>

#include "core/text/bpe.hpp"

namespace deltapipe {

/// Reads the files that Tokenizer::load() accepts. Every part of a merge and every merged pair has
/// an id in the result. Throws UserError.
TokenizerDefinition load_tokenizer_files(const std::string& path);

/// Returns true if a directory has files that load_tokenizer_files() would read.
bool has_tokenizer_files(const std::string& directory);

/// Returns true for the names of a tokenizer's files in a Hugging Face directory.
bool is_tokenizer_file(const std::string& name);

struct TokenizerFile {
  std::string name;  ///< name that transformers looks for
  std::string path;
};
/// Returns the files that belong to the tokenizer in `path`, for copying unchanged. OpenAI's files
/// get the names of Hugging Face. The list includes chat templates.
std::vector<TokenizerFile> tokenizer_files(const std::string& path);

/// Implements Tokenizer::save(). Throws UserError if a file cannot be written.
void save_tokenizer_files(const TokenizerDefinition& definition, const std::string& directory);

}  // namespace deltapipe
