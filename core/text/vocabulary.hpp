// SPDX-License-Identifier: BSD-3-Clause
// The token ids of a corpus.
#pragma once

#include <cstdint>

#include "core/text/tokenizer.hpp"

namespace deltapipe {

/// Ids 0 ... size - 1. Text needs a tokenizer, token files do not.
struct Vocabulary {
  /// Uses the ids of a tokenizer, which must outlive the vocabulary.
  Vocabulary(const Tokenizer& from)  // NOLINT: a tokenizer is a vocabulary
      : size(from.vocabulary_size()), end_of_text(from.end_of_text()), tokenizer(&from) {}
  /// Uses ids from another source.
  Vocabulary(int ids, std::int32_t end) : size(ids), end_of_text(end) {}

  int size = 0;
  std::int32_t end_of_text = -1;         ///< id that follows every document; -1: none
  const Tokenizer* tokenizer = nullptr;  ///< null: not available
};

}  // namespace deltapipe
