// SPDX-License-Identifier: BSD-3-Clause
// Files of byte-level BPE tokenizers: Hugging Face's and those of OpenAI's GPT-2 release.
#pragma once

#include <filesystem>
#include <string>

#include "core/files/json.hpp"
#include "core/text/bpe.hpp"

namespace deltapipe {

/// Reads a tokenizer.json, `root`, and the files next to it. Every part of a merge and every merged
/// pair has an id in the result. Throws UserError.
TokenizerDefinition load_byte_level_json(const std::filesystem::path& path, const Json& root);
/// Reads vocab.json and merges.txt, or OpenAI's encoder.json and vocab.bpe, likewise.
TokenizerDefinition load_byte_level_pair(const std::filesystem::path& vocabulary,
                                         const std::filesystem::path& merges);

/// Writes vocab.json, merges.txt, tokenizer.json and tokenizer_config.json. Throws UserError.
void save_byte_level_files(const TokenizerDefinition& definition, const std::string& directory);

}  // namespace deltapipe
