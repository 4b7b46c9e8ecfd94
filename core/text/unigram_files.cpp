// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/unigram_files.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "core/files/input_file.hpp"
#include "core/text/token_roles.hpp"
#include "core/text/vocabulary_builder.hpp"

namespace deltapipe {
namespace {

namespace fs = std::filesystem;
using namespace token_json;

constexpr const char* kDebertaOnly =
    "deltapipe reads Unigram with the normalizer and pre_tokenizer of DeBERTa-v2";
constexpr const char* kClasses =
    "DebertaV2Tokenizer DebertaV2TokenizerFast PreTrainedTokenizerFast TokenizersBackend";
constexpr const char* kConvert =
    "save the tokenizer with transformers' DebertaV2TokenizerFast, which writes a tokenizer.json "
    "with it";
constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

/// Adds an entry of added_tokens or added_tokens_decoder. `keeps_normalized`: unless it is set,
/// `normalized` has no effect, as in tokenizers that are not of the tokenizers library.
template <class Definition>
void add_entry(const std::string& file, const Json& entry, const Json& id, bool keeps_normalized,
               VocabularyBuilder<Definition>& builder) {
  const std::string content = token_text(entry);
  if (content.empty()) fail(file, "an added token has no content", shown(entry), kDownloadAgain);
  expect_plain(file, entry);
  const bool special = flag(file, entry, "special", false);
  const bool normalized = flag(file, entry, "normalized", !special);
  if (id.is_null())
    fail(file, "added token '" + content + "' has no usable id", "null", kDownloadAgain);
  builder.add_added(file, content, id, special, keeps_normalized && normalized);
}

/// Decodes base64 (RFC 4648) with its padding.
std::string from_base64(const std::string& file, const std::string& text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int, 256> digit_of{};
  digit_of.fill(-1);
  for (std::size_t i = 0; i < kDigits.size(); ++i)
    digit_of[static_cast<unsigned char>(kDigits[i])] = static_cast<int>(i);
  const auto digits = text.substr(0, text.find('='));
  const bool is_whole = text.size() % 4 == 0 && text.size() - digits.size() <= 2 &&
                        text.find_first_not_of('=', digits.size()) == std::string::npos;
  std::string bytes;
  unsigned bits = 0;
  int count = 0;
  for (const char c : digits) {
    const int digit = digit_of[static_cast<unsigned char>(c)];
    if (digit < 0 || !is_whole)
      fail(file, "the precompiled_charsmap is not base64", text.substr(0, 40), kDownloadAgain);
    bits = (bits << 6 | static_cast<unsigned>(digit)) & 0xFFFFu;
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 0xFFu);
  }
  return bytes;
}

NormalizerStep normalizer_step(const std::string& file, const Json& part) {
  const Json& type = member(part, "type");
  if (type == "Lowercase") return Lowercase{};
  if (type == "NFC") return Compose{};
  if (type == "Strip")
    return Strip{.left = flag(file, part, "strip_left", false),
                 .right = flag(file, part, "strip_right", false)};
  if (type == "Precompiled") {
    const Json& map = member(part, "precompiled_charsmap");
    if (!map.is_string())
      fail(file, "the precompiled_charsmap is not a text", shown(map), kDownloadAgain);
    return Precompiled{Charsmap(file, from_base64(file, map.get<std::string>()))};
  }
  if (type == "Replace") {
    const Json& pattern = member(part, "pattern");
    const std::string content = token_text(part);
    if (member(pattern, "Regex") == "\\s{2,}|[\\n\\r\\t]" && content == " ")
      return ReplaceWhiteSpace{};
    if (member(pattern, "Regex") != " {2,}" || (content != " " && content != kMetaspace))
      fail(file, "the normalizer has an unknown Replace", shown(pattern), kDebertaOnly);
    return ReplaceSpaces{content};
  }
  fail(file, "the normalizer has an unknown step", shown(type), kDebertaOnly);
}

/// Reads Metaspace, perhaps after Punctuation.
void read_pre_tokenizer(const std::string& file, const Json& root, UnigramDefinition& definition) {
  std::vector<Json> parts = parts_of(root, "pre_tokenizer", "pretokenizers");
  if (parts.size() == 2 && member(parts[0], "type") == "Punctuation") {
    const Json& behavior = member(parts[0], "behavior");
    if (!behavior.is_null() && behavior != "Isolated")
      fail(file, "the pre_tokenizer has an unknown Punctuation", shown(behavior), kDebertaOnly);
    definition.split_by_punct = true;
    parts.erase(parts.begin());
  }
  if (parts.size() != 1 || member(parts[0], "type") != "Metaspace")
    fail(file, "the pre_tokenizer is not that of DeBERTa", shown(member(root, "pre_tokenizer")),
         kDebertaOnly);
  const Json& metaspace = parts[0];
  if (const Json& by = member(metaspace, "replacement"); !by.is_null() && by != kMetaspace)
    fail(file, "Metaspace has another replacement than U+2581", shown(by), kDebertaOnly);
  if (!flag(file, metaspace, "split", true))
    fail(file, "Metaspace does not split", "split = false", kDebertaOnly);
  const Json& scheme = member(metaspace, "prepend_scheme");
  if (!scheme.is_null() && scheme != "always" && scheme != "never")
    fail(file, "Metaspace has an unknown prepend_scheme", shown(scheme), kDebertaOnly);
  definition.prefix_space = scheme != "never" && flag(file, metaspace, "add_prefix_space", true);
}

class UnigramBuilder : public VocabularyBuilder<UnigramDefinition> {
 public:
  explicit UnigramBuilder(std::string file) : VocabularyBuilder(std::move(file), kDebertaOnly) {}

  /// Adds a list of pairs of a piece and its score.
  void add_pieces(const Json& vocabulary) {
    if (!vocabulary.is_array() || vocabulary.empty())
      fail(file(), "the vocabulary is not a list of pieces and scores", shown(vocabulary),
           kDebertaOnly);
    set_size(vocabulary.size());
    for (const Json& entry : vocabulary) {
      const bool is_pair = entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
                           entry[1].is_number() && std::isfinite(entry[1].get<double>());
      if (!is_pair)
        fail(file(), "an entry of the vocabulary is not a piece and its score", shown(entry),
             kDownloadAgain);
      add_token(entry[0].get<std::string>(), definition.scores.size());
      definition.scores.push_back(entry[1].get<double>());
    }
  }

  /// Checks that normalised texts may have the added tokens, and each of them once.
  void check_normalized() const {
    std::unordered_set<std::string> contents;
    for (const AddedToken& token : definition.added) {
      if (!token.normalized) continue;
      const std::string content = normalized(definition, token.content);
      if (content.empty() || !contents.insert(content).second)
        fail(file(),
             content.empty() ? "an added token is empty in normalised text"
                             : "two added tokens are the same in normalised text",
             token.content, "set its \"normalized\" to false");
    }
  }
};

void read_unigram_json(const Json& root, UnigramBuilder& builder, TokenRoles& roles) {
  const std::string& file = builder.file();
  const Json& model = member(root, "model");
  UnigramDefinition& definition = builder.definition;
  builder.add_pieces(member(model, "vocab"));
  const Json& unknown = member(model, "unk_id");
  if (!unknown.is_number_integer() || unknown < 0 || unknown >= definition.scores.size())
    fail(file, "unk_id is not the id of a piece", shown(unknown), kDebertaOnly);
  definition.unknown = unknown.get<std::int32_t>();
  if (flag(file, model, "byte_fallback", false))
    fail(file, "the model has byte_fallback", "true", kDebertaOnly);
  for (const Json& part : parts_of(root, "normalizer", "normalizers"))
    definition.normalizer.push_back(normalizer_step(file, part));
  read_pre_tokenizer(file, root, definition);
  const Json& added = member(root, "added_tokens");
  if (!added.is_null() && !added.is_array())
    fail(file, "'added_tokens' is not a list", shown(added), kDownloadAgain);
  for (const Json& entry : added) add_entry(file, entry, member(entry, "id"), true, builder);
  read_post_processor(file, root, kDebertaOnly, roles);
}

/// Refuses settings that the tokenizer.json does not have. Version 4 of transformers ignores them
/// then, version 5 does not.
void check_setting(const std::string& file, const Json& config, const char* key, bool has) {
  if (flag(file, config, key, has) == has) return;
  fail(file, std::string("the tokenizer.json does not have the setting ") + key,
       has ? "false" : "true", std::string("set it to ") + (has ? "true" : "false"));
}

class SentencePieceBuilder : public VocabularyBuilder<SentencePieceDefinition> {
 public:
  explicit SentencePieceBuilder(std::string file)
      : VocabularyBuilder(std::move(file), kDebertaOnly) {}

  /// Gives a token that the model lacks the next id, as transformers does.
  void add_missing(const std::string& content) {
    if (id_of(content) >= 0) return;
    const auto used = std::ranges::count_if(definition.names,
                                            [](const std::string& name) { return !name.empty(); });
    add_added(file(), content, used, true, false);
  }
};

}  // namespace

UnigramDefinition load_unigram_json(const fs::path& path, const Json& root) {
  UnigramBuilder builder(path.string());
  UnigramDefinition& definition = builder.definition;
  TokenRoles roles;
  read_unigram_json(root, builder, roles);
  const fs::path directory = path.parent_path();
  const std::string file = (directory / "tokenizer_config.json").string();
  const Json config = read_tokenizer_config(directory);
  check_tokenizer_class(file, config, kClasses, kDebertaOnly);
  check_common_settings(file, config);
  check_setting(file, config, "do_lower_case",
                std::ranges::any_of(definition.normalizer, [](const NormalizerStep& step) {
                  return std::holds_alternative<Lowercase>(step);
                }));
  check_setting(file, config, "split_by_punct", definition.split_by_punct);
  for (const auto& [id, entry] : member(config, "added_tokens_decoder").items())
    add_entry(file, entry, number_of(id), true, builder);
  builder.check_added_tokens_file(directory);
  read_roles(config, roles);
  definition.marks = builder.add_marks(roles);
  builder.check_normalized();
  return std::move(definition);
}

SentencePieceDefinition load_sentencepiece_model(const fs::path& path) {
  SentencePieceBuilder builder(path.string());
  SentencePieceDefinition& definition = builder.definition;
  definition.file = path.string();
  definition.model =
      read_sentencepiece_model(path.string(), read_text_file(path.string(), file_limit::tokenizer));
  const std::vector<SentencePiece>& pieces = definition.model.pieces;
  builder.set_size(pieces.size());
  for (const SentencePiece& piece : pieces) builder.add_token(piece.text, definition.names.size());

  const fs::path directory = path.parent_path();
  const std::string file = (directory / "tokenizer_config.json").string();
  const Json config = read_tokenizer_config(directory);
  check_tokenizer_class(file, config, "DebertaV2Tokenizer DebertaV2TokenizerFast", kConvert);
  if (path.filename() != "spm.model" && member(config, "tokenizer_class").is_null())
    fail(path.string(), "the files do not name the tokenizer's rules for texts", "",
         "set tokenizer_class to \"DebertaV2Tokenizer\" in tokenizer_config.json if it has those "
         "of DeBERTa-v2; ALBERT, XLNet and T5 have others");
  check_common_settings(file, config);
  for (const char* key : {"do_lower_case", "split_by_punct"})
    if (flag(file, config, key, false))
      fail(file, std::string(key) + " is not supported with an spm.model", "true", kConvert);
  if (const Json& options = member(config, "sp_model_kwargs"); !options.empty())
    fail(file, "sp_model_kwargs is not supported", shown(options), "remove it");
  for (const auto& [id, entry] : member(config, "added_tokens_decoder").items())
    add_entry(file, entry, number_of(id), false, builder);
  const std::string older = (directory / "added_tokens.json").string();
  const Json older_tokens = read_side_file(older);
  for (const auto& [content, id] : older_tokens.items())
    builder.add_added(older, content, id, false, false);

  TokenRoles roles;
  read_roles(config, roles);
  const auto name_of = [&](const char* key, const std::string& otherwise) {
    const std::string token = token_text(member(config, key));
    return token.empty() ? otherwise : token;
  };
  // In the order in which transformers numbers them.
  for (const std::string& role :
       {name_of("bos_token", "[CLS]"), name_of("eos_token", "[SEP]"), roles.unknown,
        roles.separator, roles.padding, roles.begin, roles.mask}) {
    builder.add_missing(role);
    (void)builder.add_role(role);
  }
  for (const char* list : {"additional_special_tokens", "extra_special_tokens"})
    for (const Json& token : member(config, list)) {
      if (token_text(token).empty())
        fail(file, "a special token has no text", shown(token), kDownloadAgain);
      builder.add_missing(token_text(token));
      (void)builder.add_role(token_text(token));
    }
  definition.marks = builder.add_marks(roles);
  return std::move(definition);
}

}  // namespace deltapipe
