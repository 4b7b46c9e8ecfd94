// SPDX-License-Identifier: BSD-3-Clause
// Files of WordPiece tokenizers: those of Hugging Face's BERT models.
#pragma once

#include <filesystem>
#include <string>

#include "core/files/json.hpp"
#include "core/text/wordpiece_tokenizer.hpp"

namespace deltapipe {

/// Reads a tokenizer.json, `root`, and the tokenizer_config.json next to it. Throws UserError.
WordPieceDefinition load_wordpiece_json(const std::filesystem::path& path, const Json& root);
/// Reads a vocab.txt, a token per line, and the tokenizer_config.json next to it. Throws UserError.
WordPieceDefinition load_wordpiece_vocabulary(const std::filesystem::path& path);

}  // namespace deltapipe
