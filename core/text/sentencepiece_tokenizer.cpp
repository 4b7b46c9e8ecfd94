// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/sentencepiece_tokenizer.hpp"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "core/base/error.hpp"
#include "core/text/charsmap.hpp"
#include "core/text/token_identity.hpp"
#include "core/text/tokenizer_json.hpp"
#include "core/text/unigram_tokenizer.hpp"

namespace deltapipe {
namespace {

constexpr int kUnigram = 1;
// Bytes of a normalised byte at least: U+FFFD replaces a malformed byte, U+2581 a space.
constexpr std::size_t kLeastExpansion = 3;

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceDefinition definition)
    : definition_(std::move(definition)), added_(definition_.added) {
  const std::string& file = definition_.file;
  const SentencePieceModel& model = definition_.model;
  if (model.model_type != kUnigram)
    token_json::fail(file, "the model is of another kind than unigram",
                     std::to_string(model.model_type),
                     "deltapipe reads SentencePiece models with model_type 1");
  const Charsmap map(file, model.precompiled_charsmap);
  constexpr auto kMostPositions =
      static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
  longest_text_ = kMostPositions / std::max(kLeastExpansion, map.longest_replacement()) - 16;
  processor_ = std::make_unique<sentencepiece::SentencePieceProcessor>();
  std::string problem;
  try {
    const auto status = processor_->LoadFromSerializedProto(serialized(model));
    if (!status.ok()) problem = status.ToString();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (!problem.empty())
    token_json::fail(file, "libsentencepiece refuses the model", problem,
                     token_json::kDownloadAgain);
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::encode_to(std::string_view text,
                                       std::vector<std::int32_t>& ids) const {
  added_.encode(text, ids, [&](std::string_view plain) { encode_plain(plain, ids); });
}

void SentencePieceTokenizer::encode_plain(std::string_view text,
                                          std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  if (text.size() > longest_text_)
    throw UserError(
        {.what = "the text is too long for libsentencepiece",
         .file = definition_.file,
         .value = fmt::format("{} bytes", text.size()),
         .remedy = fmt::format(
             "use texts of at most {} bytes, or convert the tokenizer to a tokenizer.json",
             longest_text_)});
  std::vector<std::string> pieces;
  const auto status = processor_->Encode(text, &pieces);
  if (!status.ok())
    throw UserError({.what = "libsentencepiece cannot encode a text",
                     .file = definition_.file,
                     .value = status.ToString(),
                     .remedy = token_json::kDownloadAgain});
  // As in transformers: a run of unknown characters may be the name of a token.
  for (const std::string& piece : pieces) ids.push_back(processor_->PieceToId(piece));
}

std::string SentencePieceTokenizer::decode(std::span<const std::int32_t> ids) const {
  return text_of_pieces(definition_.names, ids, true);
}

std::string SentencePieceTokenizer::identity() const {
  TokenIdentity identity;
  identity.put(std::string("SentencePiece"));
  identity.put(serialized(definition_.model));
  identity.put_all(definition_.names);
  identity.put_added(definition_.added);
  return identity.bytes();
}

}  // namespace deltapipe
