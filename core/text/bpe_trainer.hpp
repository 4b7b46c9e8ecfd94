// SPDX-License-Identifier: BSD-3-Clause
// Learns the merges of a byte-level BPE (arXiv 1508.07909) from text.
#pragma once

#include <string_view>
#include <vector>

#include "core/text/bpe.hpp"

namespace deltapipe {

/// Implements Tokenizer::train; vocabulary_size >= 257.
TokenizerDefinition train_bpe(const std::vector<std::string_view>& documents, int vocabulary_size);

}  // namespace deltapipe
