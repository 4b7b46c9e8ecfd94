// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/tokenizer.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <mutex>

#include "core/base/error.hpp"
#include "core/text/bpe.hpp"
#include "core/text/bpe_trainer.hpp"
#include "core/text/pretokenizer.hpp"
#include "core/text/tokenizer_files.hpp"

namespace deltapipe {

struct Tokenizer::Impl {
  explicit Impl(TokenizerDefinition from)
      : definition(std::move(from)), bytes(token_bytes(definition)), encoder(definition) {
    std::sort(definition.added.begin(), definition.added.end(),
              [](const AddedToken& a, const AddedToken& b) {
                return a.content.size() > b.content.size();
              });
    for (const AddedToken& token : definition.added) {
      starts_added[token.normalized ? 1 : 0][static_cast<unsigned char>(token.content[0])] = true;
      for (const char c : token.content) added_has_space |= c == ' ' || c == '\n';
    }
  }

  /// Returns the longest added token of one kind at the start of `text`; null: none.
  const AddedToken* added_at(std::string_view text, bool normalized) const {
    if (!starts_added[normalized ? 1 : 0][static_cast<unsigned char>(text[0])]) return nullptr;
    for (const AddedToken& token : definition.added) {
      if (token.normalized == normalized && text.starts_with(token.content)) return &token;
    }
    return nullptr;
  }

  /// Appends the ids of added tokens of one kind; `between` encodes the text between them.
  template <class Between>
  void encode_added(std::string_view text, bool normalized, std::vector<std::int32_t>& ids,
                    const Between& between) const {
    std::size_t plain = 0;  // start of the text since the last added token
    for (std::size_t i = 0; i < text.size();) {
      const AddedToken* token = added_at(text.substr(i), normalized);
      if (token == nullptr) {
        ++i;
        continue;
      }
      between(text.substr(plain, i - plain));
      if (token->id < 0)
        throw UserError({.what = "the text has a token that the tokenizer's files name without an "
                                 "id",
                         .value = token->content,
                         .remedy = "add it to added_tokens.json, or remove it from the text"});
      ids.push_back(token->id);
      i += token->content.size();
      plain = i;
    }
    between(text.substr(plain));
  }

  void encode_plain(std::string_view text, PieceMemory& memory,
                    std::vector<std::int32_t>& ids) const {
    if (text.empty()) return;
    std::string prefixed;
    if (definition.add_prefix_space && text[0] != ' ') {
      prefixed = " ";
      prefixed += text;
      text = prefixed;
    }
    PieceReader reader(text);
    std::string_view piece;
    while (reader.next(piece)) encoder.encode(piece, memory, ids);
  }

  /// Returns a memory that no thread is using.
  std::unique_ptr<PieceMemory> take_memory() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (memories.empty()) return std::make_unique<PieceMemory>();
    std::unique_ptr<PieceMemory> memory = std::move(memories.back());
    memories.pop_back();
    return memory;
  }
  void return_memory(std::unique_ptr<PieceMemory> memory) {
    const std::lock_guard<std::mutex> lock(mutex);
    memories.push_back(std::move(memory));
  }

  TokenizerDefinition definition;  // added tokens: longest first
  std::vector<std::string> bytes;
  std::array<std::array<bool, 256>, 2> starts_added{};  // indexed by `normalized` and first byte
  bool added_has_space = false;
  BpeEncoder encoder;
  std::mutex mutex;  // protects the memories
  std::vector<std::unique_ptr<PieceMemory>> memories;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::string& path) {
  return Tokenizer(std::make_unique<Impl>(load_tokenizer_files(path)));
}

Tokenizer Tokenizer::train(const std::vector<std::string_view>& documents, int vocabulary_size) {
  constexpr int kLeast = 257;
  if (vocabulary_size < kLeast) {
    throw UserError({.what = "a byte-level vocabulary cannot be so small",
                     .file = "",
                     .value = std::to_string(vocabulary_size),
                     .remedy = "use at least 257: all bytes and the end of text"});
  }
  return Tokenizer(std::make_unique<Impl>(train_bpe(documents, vocabulary_size)));
}

void Tokenizer::save(const std::string& directory) const {
  save_tokenizer_files(impl_->definition, directory);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encode_to(text, ids);
  return ids;
}

void Tokenizer::encode_to(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::unique_ptr<PieceMemory> memory = impl_->take_memory();
  impl_->encode_added(text, false, ids, [&](std::string_view rest) {
    impl_->encode_added(rest, true, ids,
                        [&](std::string_view plain) { impl_->encode_plain(plain, *memory, ids); });
  });
  impl_->return_memory(std::move(memory));
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < vocabulary_size()) text += impl_->bytes[static_cast<std::size_t>(id)];
  }
  return text;
}

std::size_t Tokenizer::safe_cut(std::string_view text) const {
  if (impl_->added_has_space) return 0;
  // In a piece, no space follows another symbol, and a piece depends only on the spaces after it.
  const auto blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  for (std::size_t i = text.size(); i-- > 1;) {
    const bool cut = text[i] == ' ' || (text[i] == '\n' && !impl_->definition.add_prefix_space);
    const char before = text[i - 1];
    if (cut && static_cast<unsigned char>(before) < 0x80 && !blank(before)) return i;
  }
  return 0;
}

int Tokenizer::vocabulary_size() const {
  return static_cast<int>(impl_->bytes.size());
}

const std::vector<std::string>& Tokenizer::warnings() const {
  return impl_->definition.warnings;
}

std::string Tokenizer::hash() const {
  const TokenizerDefinition& definition = impl_->definition;
  std::string bytes;
  const auto put = [&](std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(number >> shift);
  };
  const auto put_text = [&](const std::string& text) {
    put(text.size());
    bytes += text;
  };
  put(definition.names.size());
  for (const std::string& name : definition.names) put_text(name);
  put(definition.merges.size());
  for (const auto& [left, right] : definition.merges) put(pair_key(left, right));
  std::vector<AddedToken> added = definition.added;
  std::ranges::sort(added, {}, &AddedToken::id);
  for (const AddedToken& token : added) {
    put(static_cast<std::uint64_t>(token.id) << 1 | (token.normalized ? 1 : 0));
    put_text(token.content);
  }
  put(static_cast<std::uint64_t>(std::int64_t{definition.end_of_text}));
  put((definition.add_prefix_space ? 1 : 0) | (definition.ignore_merges ? 2 : 0));
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx",
                static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text.data();
}

std::int32_t Tokenizer::end_of_text() const {
  return impl_->definition.end_of_text;
}

}  // namespace deltapipe
