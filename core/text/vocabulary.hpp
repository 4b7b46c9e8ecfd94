// SPDX-License-Identifier: BSD-3-Clause
// What the ids of a corpus are.
#pragma once

#include <cstdint>

#include "core/text/tokenizer.hpp"

namespace deltapipe {

/// Ids are 0 ... size - 1. Text needs a tokenizer, files of tokens do not.
struct Vocabulary {
  /// The tokenizer's; it outlives the vocabulary.
  Vocabulary(const Tokenizer& from)  // NOLINT: a tokenizer is a vocabulary
      : size(from.vocabulary_size()), end_of_text(from.end_of_text()), tokenizer(&from) {}
  /// Vocabulary of ids from another source.
  Vocabulary(int ids, std::int32_t end) : size(ids), end_of_text(end) {}

  int size = 0;
  std::int32_t end_of_text = -1;         ///< follows every document; -1: nothing does
  const Tokenizer* tokenizer = nullptr;  ///< null: not available
};

}  // namespace deltapipe
