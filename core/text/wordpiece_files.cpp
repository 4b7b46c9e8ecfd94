// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/wordpiece_files.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "core/base/utf8.hpp"
#include "core/files/input_file.hpp"
#include "core/text/vocabulary_builder.hpp"

namespace deltapipe {
namespace {

namespace fs = std::filesystem;
using namespace token_json;

constexpr const char* kBertOnly =
    "deltapipe reads WordPiece with BERT's normalizer and pre_tokenizer";

/// Tokens with a role and their names in files that do not name them.
struct Roles {
  std::string unknown = "[UNK]", begin = "[CLS]", separator = "[SEP]", padding = "[PAD]",
              mask = "[MASK]";
};

class Builder : public VocabularyBuilder<WordPieceDefinition> {
 public:
  explicit Builder(std::string file) : VocabularyBuilder(std::move(file), kBertOnly) {}

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

  /// Adds a token with a role, which texts may contain, if the vocabulary has it. Returns its id;
  /// -1: not in the vocabulary.
  std::int32_t add_role(const std::string& content) {
    const std::int32_t id = id_of(content);
    if (id >= 0 && !is_added(content)) add_known(content, id, true, false);
    return id;
  }

  std::int32_t required_role(const std::string& content, const char* key) {
    const std::int32_t id = add_role(content);
    if (id < 0)
      fail(file(), std::string("the vocabulary lacks the ") + key, content,
           std::string("name one of its tokens as ") + key + " in tokenizer_config.json");
    return id;
  }
};

/// Returns true if a part of a template is the text `id`.
bool is_sequence(const Json& part, const char* id) {
  return member(member(part, "Sequence"), "id") == id;
}
std::string special_of(const Json& part) {
  return token_text(member(member(part, "SpecialToken"), "id"));
}

/// Reads begin and separator of `begin A separator` and `begin A separator B separator`.
void read_post_processor(const std::string& file, const Json& root, Roles& roles) {
  const Json& processor = member(root, "post_processor");
  if (processor.is_null()) return;
  const Json& type = member(processor, "type");
  if (type == "BertProcessing") {
    const auto first = [&](const char* key) {
      const Json& pair = member(processor, key);
      return pair.is_array() && !pair.empty() ? token_text(pair[0]) : std::string();
    };
    roles.begin = first("cls");
    roles.separator = first("sep");
  } else if (type == "TemplateProcessing") {
    const Json& single = member(processor, "single");
    const Json& pair = member(processor, "pair");
    const bool is_bert = single.is_array() && single.size() == 3 && is_sequence(single[1], "A") &&
                         pair.is_array() && pair.size() == 5 && is_sequence(pair[1], "A") &&
                         is_sequence(pair[3], "B") &&
                         special_of(pair[0]) == special_of(single[0]) &&
                         special_of(pair[2]) == special_of(single[2]) &&
                         special_of(pair[4]) == special_of(single[2]);
    if (!is_bert)
      fail(file, "the post_processor is not that of BERT", shown(single),
           "deltapipe supports begin, text, separator, text, separator");
    roles.begin = special_of(single[0]);
    roles.separator = special_of(single[2]);
  } else {
    fail(file, "unknown post_processor", shown(type), kBertOnly);
  }
}

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

void read_tokenizer_json(const Json& root, Builder& builder, Roles& roles) {
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
  read_post_processor(file, root, roles);
}

/// Reads added_tokens.json, which older versions of transformers write.
void read_added_tokens(const fs::path& directory, Builder& builder) {
  const std::string file = (directory / "added_tokens.json").string();
  const Json tokens = read_side_file(file);
  for (const auto& [content, id] : tokens.items()) {
    if (content.empty()) fail(file, "an added token is empty", "", "give it a text");
    if (!builder.is_added(content))
      fail(file, "the added token is searched in normalised text", content,
           "deltapipe only supports added tokens of tokenizer.json and tokenizer_config.json, with "
           "normalized = false");
  }
}

/// Reads tokenizer_config.json, whose settings precede those of tokenizer.json, as in transformers,
/// and the roles of special_tokens_map.json.
void read_config(const fs::path& directory, Builder& builder, Roles& roles) {
  const std::string file = (directory / "tokenizer_config.json").string();
  Json config = read_side_file(file);
  constexpr std::array kClasses = {"BertTokenizer",           "BertTokenizerFast",
                                   "DistilBertTokenizer",     "DistilBertTokenizerFast",
                                   "ElectraTokenizer",        "ElectraTokenizerFast",
                                   "PreTrainedTokenizerFast", "TokenizersBackend"};
  const Json& name = member(config, "tokenizer_class");
  if (!name.is_null() && std::find(kClasses.begin(), kClasses.end(), name) == kClasses.end())
    fail(file, "the tokenizer_class has its own rules for tokens", shown(name), kBertOnly);
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
  const Json added = member(config, "added_tokens_decoder");
  for (const auto& [id, entry] : added.items()) builder.add_added(file, entry, number_of(id));
  // In transformers the older file has precedence if the newer one lacks added_tokens_decoder.
  if (added.is_null())
    if (const Json older = read_side_file(directory / "special_tokens_map.json"); !older.is_null())
      config.update(older);
  for (const auto& [key, role] :
       {std::pair("unk_token", &roles.unknown), std::pair("cls_token", &roles.begin),
        std::pair("sep_token", &roles.separator), std::pair("pad_token", &roles.padding),
        std::pair("mask_token", &roles.mask)})
    if (const std::string token = token_text(member(config, key)); !token.empty()) *role = token;
}

WordPieceDefinition finish(const fs::path& directory, Builder& builder, Roles& roles) {
  read_config(directory, builder, roles);
  read_added_tokens(directory, builder);
  builder.definition.unknown = builder.required_role(roles.unknown, "unk_token");
  builder.definition.marks = {.begin = builder.required_role(roles.begin, "cls_token"),
                              .separator = builder.required_role(roles.separator, "sep_token"),
                              .padding = std::max(builder.add_role(roles.padding), 0)};
  (void)builder.add_role(roles.mask);
  return std::move(builder.definition);
}

}  // namespace

WordPieceDefinition load_wordpiece_json(const fs::path& path, const Json& root) {
  Builder builder(path.string());
  Roles roles;
  read_tokenizer_json(root, builder, roles);
  return finish(path.parent_path(), builder, roles);
}

WordPieceDefinition load_wordpiece_vocabulary(const fs::path& path) {
  const std::string text = read_text_file(path.string(), file_limit::tokenizer);
  if (const std::size_t place = first_invalid_utf8(text); place < text.size())
    fail(path.string(), "the vocabulary is not UTF-8", "byte " + std::to_string(place), kBertOnly);
  Builder builder(path.string());
  for_each_line(text, [&](const std::string& token, std::size_t line) {
    builder.add_token(token, line - 1, line);
  });
  const std::size_t tokens = builder.definition.names.size();
  if (tokens == 0) fail(path.string(), "the vocabulary is empty", "", kBertOnly);
  builder.set_size(tokens);
  Roles roles;
  return finish(path.parent_path(), builder, roles);
}

}  // namespace deltapipe
