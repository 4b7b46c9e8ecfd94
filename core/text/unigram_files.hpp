// SPDX-License-Identifier: BSD-3-Clause
// Files of Unigram tokenizers: those of Hugging Face's DeBERTa-v2 models.
#pragma once

#include <filesystem>

#include "core/files/json.hpp"
#include "core/text/sentencepiece_tokenizer.hpp"
#include "core/text/unigram_tokenizer.hpp"

namespace deltapipe {

/// Reads a tokenizer.json, `root`, and the tokenizer_config.json next to it. Throws UserError.
UnigramDefinition load_unigram_json(const std::filesystem::path& path, const Json& root);
/// Reads an spm.model or spiece.model and the tokenizer_config.json next to it. Throws UserError.
SentencePieceDefinition load_sentencepiece_model(const std::filesystem::path& path);

}  // namespace deltapipe
