// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/tokenizer.hpp"

#include <xxhash.h>

#include <utility>

#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/text/bpe_trainer.hpp"
#include "core/text/byte_level_tokenizer.hpp"
#include "core/text/tokenizer_files.hpp"

namespace deltapipe {

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerModel> model) : model_(std::move(model)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::string& path) {
  return Tokenizer(load_tokenizer_files(path));
}

Tokenizer Tokenizer::train(const std::vector<std::string_view>& documents, int vocabulary_size) {
  constexpr int kLeast = 257;
  if (vocabulary_size < kLeast) {
    throw UserError({.what = "a byte-level vocabulary cannot be so small",
                     .file = "",
                     .value = std::to_string(vocabulary_size),
                     .remedy = "use at least 257: all bytes and the end of text"});
  }
  return Tokenizer(std::make_unique<ByteLevelTokenizer>(train_bpe(documents, vocabulary_size)));
}

void Tokenizer::save(const std::string& directory) const {
  model_->save(directory);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encode_to(text, ids);
  return ids;
}

void Tokenizer::encode_to(std::string_view text, std::vector<std::int32_t>& ids) const {
  model_->encode_to(text, ids);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  return model_->decode(ids);
}

std::size_t Tokenizer::safe_cut(std::string_view text) const {
  return model_->safe_cut(text);
}

int Tokenizer::vocabulary_size() const {
  return model_->vocabulary_size();
}

std::string Tokenizer::hash() const {
  const std::string identity = model_->identity();
  const XXH128_hash_t hash = XXH3_128bits(identity.data(), identity.size());
  return hex_digits(hash.high64) + hex_digits(hash.low64);
}

std::int32_t Tokenizer::end_of_text() const {
  return model_->end_of_text();
}

TextMarks Tokenizer::marks() const {
  return model_->marks();
}

const std::vector<std::string>& Tokenizer::warnings() const {
  return model_->warnings();
}

}  // namespace deltapipe
