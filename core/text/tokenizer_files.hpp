// SPDX-License-Identifier: BSD-3-Clause
// The tokenizer in a Hugging Face directory, or in that of OpenAI's GPT-2 release.
#pragma once

#include <string>
#include <vector>

namespace deltapipe {

/// Returns true if a directory has files that Tokenizer::load() would read.
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

}  // namespace deltapipe
