// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/tokenizer.hpp"

#include <xxhash.h>

#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/text/bpe_trainer.hpp"
#include "core/text/byte_level_tokenizer.hpp"

namespace deltapipe {

std::unique_ptr<const Tokenizer> Tokenizer::train(const std::vector<std::string_view>& documents,
                                                  int vocabulary_size) {
  constexpr int kLeast = 257;
  if (vocabulary_size < kLeast) {
    throw UserError({.what = "a byte-level vocabulary cannot be so small",
                     .file = "",
                     .value = std::to_string(vocabulary_size),
                     .remedy = "use at least 257: all bytes and the end of text"});
  }
  return std::make_unique<ByteLevelTokenizer>(train_bpe(documents, vocabulary_size));
}

void Tokenizer::save(const std::string&) const {
  DELTAPIPE_ASSERT(false, "only trained tokenizers are written; files of others are copied");
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encode_to(text, ids);
  return ids;
}

std::string Tokenizer::hash() const {
  const std::string bytes = identity();
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return hex_digits(hash.high64) + hex_digits(hash.low64);
}

}  // namespace deltapipe
