// SPDX-License-Identifier: BSD-3-Clause
// Tokenizer files of Hugging Face and of OpenAI's GPT-2 release.
#pragma once

#include <string>
#include <vector>

#include "core/text/bpe.hpp"

namespace deltapipe {

/// Reads what Tokenizer::load takes. Every byte, every part of a merge and every merged pair has
/// an id in the result. Throws UserError.
TokenizerDefinition load_tokenizer_files(const std::string& path);

/// True if a directory has files that load_tokenizer_files would read.
bool has_tokenizer_files(const std::string& directory);

/// True for the names that a tokenizer's files have in a Hugging Face directory.
bool is_tokenizer_file(const std::string& name);

struct TokenizerFile {
  std::string name;  ///< as transformers looks for it
  std::string path;
};
/// The files that belong to what load_tokenizer_files reads from `path`, to be copied as they are.
/// OpenAI's get Hugging Face's names. Templates of chats are among them.
std::vector<TokenizerFile> tokenizer_files(const std::string& path);

/// Writes what Tokenizer::save promises. Throws UserError if a file cannot be written.
void save_tokenizer_files(const TokenizerDefinition& definition, const std::string& directory);

}  // namespace deltapipe
