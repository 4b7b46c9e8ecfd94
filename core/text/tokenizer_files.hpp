// SPDX-License-Identifier: BSD-3-Clause
// The tokenizer in a Hugging Face directory, or in that of OpenAI's GPT-2 release.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/text/tokenizer_model.hpp"

namespace deltapipe {

/// Reads the files that Tokenizer::load() accepts. Throws UserError.
std::unique_ptr<const TokenizerModel> load_tokenizer_files(const std::string& path);

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

}  // namespace deltapipe
