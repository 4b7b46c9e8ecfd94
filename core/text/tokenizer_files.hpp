// SPDX-License-Identifier: BSD-3-Clause
// Tokenizer files of Hugging Face and of OpenAI's GPT-2 release.
#pragma once

#include <string>

#include "core/text/bpe.hpp"

namespace deltapipe {

/// Reads what Tokenizer::load takes. Every byte, every part of a merge and every merged pair has
/// an id in the result. Throws UserError.
TokenizerDefinition load_tokenizer_files(const std::string& path);

/// Whether a directory has files that load_tokenizer_files would read.
bool has_tokenizer_files(const std::string& directory);

/// Writes what Tokenizer::save promises. Throws UserError if a file cannot be written.
void save_tokenizer_files(const TokenizerDefinition& definition, const std::string& directory);

}  // namespace deltapipe
