// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/wordpiece_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/utf8.hpp"
#include "core/files/input_file.hpp"
#include "core/text/token_roles.hpp"
#include "core/text/vocabulary_builder.hpp"

namespace deltapipe {
namespace {

namespace fs = std::filesystem;
using namespace token_json;

constexpr const char* kBertOnly =
    "deltapipe reads WordPiece with BERT's normalizer and pre_tokenizer";

class WordPieceBuilder : public VocabularyBuilder<WordPieceDefinition> {
 public:
  explicit WordPieceBuilder(std::string file) : VocabularyBuilder(std::move(file), kBertOnly) {}

  /// Adds an entry of added_tokens or added_tokens_decoder.
  void add_added(const std::string& file, const Json& entry, const Json& id) {
    const std::string content = token_text(entry);
    if (content.empty()) fail(file, "an added token has no content", shown(entry), "");
    expect_plain(file, entry);
    const bool special = flag(file, entry, "special", false);
    if (flag(file, entry, "normalized", !special))
      fail(file, "the added token is searched in normalised text", content,
           "deltapipe only supports added tokens with normalized = false");
    if (is_added(content)) return;
    if (id.is_null()) (void)usable_id(id, content);  // an entry has an id, a role need not
    VocabularyBuilder::add_added(file, content, id, special, false);
  }
};

/// strip_accents = null means as lowercase.
void read_normalizer(const std::string& file, const Json& root, BertNormalizer& normalizer) {
  const Json& from = member(root, "normalizer");
  if (member(from, "type") != "BertNormalizer")
    fail(file, "the normalizer is not BERT's", shown(from), kBertOnly);
  normalizer.clean_text = flag(file, from, "clean_text", true);
  normalizer.handle_chinese_chars = flag(file, from, "handle_chinese_chars", true);
  normalizer.lowercase = flag(file, from, "lowercase", true);
  normalizer.strip_accents = flag(file, from, "strip_accents", normalizer.lowercase);
}

void read_wordpiece_json(const Json& root, WordPieceBuilder& builder, TokenRoles& roles) {
  const std::string& file = builder.file();
  const Json& model = member(root, "model");
  builder.add_vocabulary(member(model, "vocab"));
  if (const std::string unknown = token_text(member(model, "unk_token")); !unknown.empty())
    roles.unknown = unknown;
  const Json& prefix = member(model, "continuing_subword_prefix");
  if (prefix.is_string()) builder.definition.prefix = prefix.get<std::string>();
  if (builder.definition.prefix.empty())
    fail(file, "the model's continuing_subword_prefix is empty", "", kBertOnly);
  if (const Json& most = member(model, "max_input_chars_per_word"); !most.is_null()) {
    if (!most.is_number_integer() || most < 1)
      fail(file, "max_input_chars_per_word is not a positive number", shown(most), "");
    builder.definition.longest_word = most.get<std::size_t>();
  }
  read_normalizer(file, root, builder.definition.normalizer);
  const Json& cut = member(root, "pre_tokenizer");
  if (member(cut, "type") != "BertPreTokenizer")
    fail(file, "the pre_tokenizer is not BERT's", shown(cut), kBertOnly);
  const Json& added = member(root, "added_tokens");
  if (!added.is_null() && !added.is_array())
    fail(file, "'added_tokens' is not a list", shown(added), "");
  for (const Json& entry : added) builder.add_added(file, entry, member(entry, "id"));
  read_post_processor(file, root, kBertOnly, roles);
}

void read_config(const fs::path& directory, WordPieceBuilder& builder, TokenRoles& roles) {
  const std::string file = (directory / "tokenizer_config.json").string();
  const Json config = read_tokenizer_config(directory);
  check_tokenizer_class(file, config,
                        "BertTokenizer BertTokenizerFast DistilBertTokenizer "
                        "DistilBertTokenizerFast ElectraTokenizer ElectraTokenizerFast "
                        "PreTrainedTokenizerFast TokenizersBackend",
                        kBertOnly);
  check_common_settings(file, config);
  BertNormalizer& normalizer = builder.definition.normalizer;
  if (config.contains("do_lower_case") || config.contains("strip_accents")) {
    const bool accents_follow = normalizer.strip_accents == normalizer.lowercase;
    normalizer.lowercase = flag(file, config, "do_lower_case", normalizer.lowercase);
    normalizer.strip_accents =
        flag(file, config, "strip_accents",
             accents_follow ? normalizer.lowercase : normalizer.strip_accents);
  }
  normalizer.handle_chinese_chars =
      flag(file, config, "tokenize_chinese_chars", normalizer.handle_chinese_chars);
  for (const auto& [id, entry] : member(config, "added_tokens_decoder").items())
    builder.add_added(file, entry, number_of(id));
  read_roles(config, roles);
}

WordPieceDefinition finish(const fs::path& directory, WordPieceBuilder& builder,
                           TokenRoles& roles) {
  read_config(directory, builder, roles);
  builder.check_added_tokens_file(directory);
  builder.definition.unknown = builder.add_required_role(roles.unknown, "unk_token");
  builder.definition.marks = builder.add_marks(roles);
  return std::move(builder.definition);
}

}  // namespace

WordPieceDefinition load_wordpiece_json(const fs::path& path, const Json& root) {
  WordPieceBuilder builder(path.string());
  TokenRoles roles;
  read_wordpiece_json(root, builder, roles);
  return finish(path.parent_path(), builder, roles);
}

WordPieceDefinition load_wordpiece_vocabulary(const fs::path& path) {
  const std::string text = read_text_file(path.string(), file_limit::tokenizer);
  if (const std::size_t place = first_invalid_utf8(text); place < text.size())
    fail(path.string(), "the vocabulary is not UTF-8", fmt::format("byte {}", place), kBertOnly);
  WordPieceBuilder builder(path.string());
  for_each_line(text, [&](const std::string& token, std::size_t line) {
    builder.add_token(token, line - 1, line);
  });
  const std::size_t tokens = builder.definition.names.size();
  if (tokens == 0) fail(path.string(), "the vocabulary is empty", "", kBertOnly);
  builder.set_size(tokens);
  TokenRoles roles;
  return finish(path.parent_path(), builder, roles);
}

}  // namespace deltapipe
