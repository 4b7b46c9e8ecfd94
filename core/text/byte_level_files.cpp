// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/byte_level_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <set>
#include <unordered_set>

#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/files/input_file.hpp"
#include "core/files/json.hpp"
#include "core/files/replacement.hpp"
#include "core/text/byte_level.hpp"
#include "core/text/vocabulary_builder.hpp"

namespace deltapipe {
namespace {

namespace fs = std::filesystem;
using namespace token_json;

constexpr const char* kNothingAdded =
    "deltapipe adds no tokens to a text; save the tokenizer with add_bos_token=False and "
    "add_eos_token=False";
// GPT-2's pattern as OpenAI and as the tiktoken library write it.
constexpr std::array kPatterns = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};
constexpr const char* kKnownKinds =
    "deltapipe reads GPT-2's byte-level BPE, BERT's WordPiece and DeBERTa's Unigram";

/// Returns true for the name of a single byte.
bool is_one_character(const std::string& name) {
  return std::ranges::count_if(name, [](char c) { return (c & 0xC0) != 0x80; }) < 2;
}

/// Builds a definition and checks its input against the existing ids.
class ByteLevelBuilder : public VocabularyBuilder<TokenizerDefinition> {
 public:
  explicit ByteLevelBuilder(std::string file) : VocabularyBuilder(std::move(file), kKnownKinds) {}
  using VocabularyBuilder::add_added;

  /// Adds an entry of added_tokens or added_tokens_decoder.
  void add_added(const std::string& file, const Json& entry, const Json& id) {
    const Json& content = member(entry, "content");
    if (!content.is_string()) fail(file, "an added token has no content", shown(entry), "");
    expect_plain(file, entry);
    const bool special = flag(file, entry, "special", false);
    add_added(file, content.get<std::string>(), id, special,
              flag(file, entry, "normalized", !special));
  }

  void add_merge(const std::string& file, std::size_t line, const std::string& left,
                 const std::string& right) {
    for (const std::string& name : {left, right, left + right}) {
      if (id_of(name) < 0) {
        fail(file, "a merge needs a token that the vocabulary lacks", name,
             "take both files from the same tokenizer", line);
      }
    }
    definition.merges.emplace_back(id_of(left), id_of(right));
    is_merged_.insert(left + right);
  }

  /// Warns of tokens that no text produces: they indicate lost merges, as in a truncated file.
  void check_merges(const std::string& file) {
    if (definition.ignore_merges) return;
    const std::string* first = nullptr;
    std::size_t count = 0;
    for (const std::string& name : definition.names) {
      if (is_one_character(name) || is_merged_.contains(name) || is_added(name)) continue;
      if (count++ == 0) first = &name;
    }
    if (count == 0) return;
    const std::string what =
        fmt::format("{} token(s) of the vocabulary are not the result of a merge", count);
    constexpr const char* kRemedy = "download the file again if it is truncated";
    if (definition.merges.empty()) fail(file, "has no merges: " + what, *first, kRemedy);
    definition.warnings.push_back(
        fmt::format("{}: {}, '{}' among them, so that no text contains them; {}", file, what,
                    printable(*first), kRemedy));
  }

  /// Adds a merge "left right", as in merges.txt.
  void add_merge(const std::string& file, std::size_t line, const std::string& text) {
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == text.size() ||
        text.find(' ', space + 1) != std::string::npos) {
      fail(file, "a merge is two tokens with a space between", text, kDownloadAgain, line);
    }
    add_merge(file, line, text.substr(0, space), text.substr(space + 1));
  }

  void set_end_of_text(const std::string& content, bool required) {
    const std::int32_t id = id_of(content);
    if (id >= 0) {
      add_special(content);
      definition.end_of_text = id;
    } else if (required) {
      fail(file(), "the vocabulary lacks the end-of-text token", content,
           "name one of its tokens as eos_token in tokenizer_config.json");
    }
  }

  /// Checks a token with a role: it becomes an added one with its flags, unless it exists already.
  void check_role(const std::string& file, const Json& token) const {
    if (!is_added(token_text(token))) expect_plain(file, token);
  }

  /// Adds a token with a role. transformers finds it in texts even if it is not an added token.
  void add_special(const std::string& content) {
    if (!content.empty() && !is_added(content)) add_known(content, id_of(content), true, false);
  }

 private:
  std::unordered_set<std::string> is_merged_;
};

void read_merges_txt(const std::string& file, ByteLevelBuilder& builder) {
  const std::string text = read_text_file(file, file_limit::tokenizer);
  for_each_line(text, [&](const std::string& merge, std::size_t line) {
    const bool header = line == 1 && merge.starts_with("#version");
    if (!header && !merge.empty()) builder.add_merge(file, line, merge);
  });
}

bool is_byte_level(const Json& part) {
  return member(part, "type") == "ByteLevel";
}

/// Returns true for a template such as "$A", which adds no ids to the text's.
bool adds_nothing(const Json& processor) {
  if (is_byte_level(processor)) return true;
  const Json& single = member(processor, "single");
  return member(processor, "type") == "TemplateProcessing" && single.is_array() &&
         single.size() == 1 && member(member(single[0], "Sequence"), "id") == "A";
}

void check_post_processor(const std::string& file, const Json& root) {
  for (const Json& part : parts_of(root, "post_processor", "processors")) {
    if (adds_nothing(part)) continue;
    const bool is_template = member(part, "type") == "TemplateProcessing";
    fail(file, is_template ? "the post_processor adds tokens to a text" : "unknown post_processor",
         shown(is_template ? member(part, "single") : member(part, "type")),
         is_template ? kNothingAdded : kKnownKinds);
  }
}

/// Returns true for a cut at the matches of GPT-2's pattern, which is built into ByteLevel.
bool is_gpt2_split(const Json& part) {
  const Json& pattern = member(member(part, "pattern"), "Regex");
  return member(part, "type") == "Split" && member(part, "behavior") == "Isolated" &&
         member(part, "invert") != true &&
         std::find(kPatterns.begin(), kPatterns.end(), pattern) != kPatterns.end();
}

/// Reads a ByteLevel with its built-in pattern, or a Split by that pattern and a ByteLevel without
/// it. Returns true if it puts a space before a text.
bool reads_with_prefix_space(const std::string& file, const Json& root) {
  const std::vector<Json> parts = parts_of(root, "pre_tokenizer", "pretokenizers");
  const Json byte_level = parts.empty() ? Json() : parts.back();
  if (is_byte_level(byte_level)) {
    const bool prefix = flag(file, byte_level, "add_prefix_space", true);
    const bool own_pattern = flag(file, byte_level, "use_regex", true);
    if (parts.size() == 1 && own_pattern) return prefix;
    if (parts.size() == 2 && is_gpt2_split(parts[0]) && !own_pattern && !prefix) return false;
  }
  fail(file, "the pre_tokenizer is not ByteLevel with GPT-2's pattern",
       shown(member(root, "pre_tokenizer")), kKnownKinds);
}

void check_kind(const std::string& file, const Json& root) {
  const Json& model = member(root, "model");
  if (!model.is_object())
    fail(file, "this is not a tokenizer.json: it has no 'model'", "", kKnownKinds);
  const Json& type = member(model, "type");
  if (!type.is_null() && type != "BPE") {
    fail(file, "the tokenizer is of another kind", shown(type), kKnownKinds);
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = member(model, key);
    if (!value.is_null() && value != "") {
      fail(file, std::string("the model has a ") + key, shown(value), kKnownKinds);
    }
  }
  if (flag(file, model, "byte_fallback", false)) {
    fail(file, "the model has byte_fallback", "true", kKnownKinds);
  }
  const Json& dropout = member(model, "dropout");
  if (!dropout.is_null() && dropout != 0) {
    fail(file, "the model has BPE dropout", shown(dropout), "set it to null");
  }
  if (!parts_of(root, "normalizer", "normalizers").empty()) {
    fail(file, "the tokenizer has a normalizer", shown(member(root, "normalizer")), kKnownKinds);
  }
  check_post_processor(file, root);
  for (const Json& part : parts_of(root, "decoder", "decoders")) {
    if (!is_byte_level(part)) {
      fail(file, "unknown decoder", shown(member(part, "type")), kKnownKinds);
    }
  }
}

/// Reads tokenizer.json. Ignores truncation and padding, which transformers disables unless a call
/// requests them.
void read_byte_level_json(const Json& root, ByteLevelBuilder& builder) {
  const std::string& file = builder.file();
  check_kind(file, root);
  const Json& model = member(root, "model");
  builder.add_vocabulary(member(model, "vocab"));
  const Json& merges = member(model, "merges");
  if (!merges.is_array()) fail(file, "the model has no list of merges", shown(merges), "");
  for (const Json& merge : merges) {
    if (merge.is_string()) {
      builder.add_merge(file, 0, merge.get<std::string>());
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      builder.add_merge(file, 0, merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      fail(file, "a merge is two tokens", shown(merge), kDownloadAgain);
    }
  }
  const Json& added = member(root, "added_tokens");
  if (!added.is_null() && !added.is_array()) {
    fail(file, "'added_tokens' is not a list", shown(added), "");
  }
  for (const Json& entry : added) builder.add_added(file, entry, member(entry, "id"));
  builder.definition.add_prefix_space = reads_with_prefix_space(file, root);
  builder.definition.ignore_merges = flag(file, model, "ignore_merges", false);
}

constexpr std::array kRoles = {"bos_token", "eos_token", "unk_token", "sep_token",
                               "pad_token", "cls_token", "mask_token"};
constexpr std::array kRoleLists = {"additional_special_tokens", "extra_special_tokens"};

/// Refuses settings that would give other ids than GPT-2's.
void check_config(const std::string& file, const Json& config) {
  constexpr std::array kClasses = {
      "GPT2Tokenizer",       "GPT2TokenizerFast", "PreTrainedTokenizerFast",
      "PreTrainedTokenizer", "TokenizersBackend", "GPTNeoXTokenizerFast",
      "GPTNeoXTokenizer",    "CodeGenTokenizer",  "CodeGenTokenizerFast"};
  const Json& name = member(config, "tokenizer_class");
  if (!name.is_null() && std::find(kClasses.begin(), kClasses.end(), name) == kClasses.end())
    fail(file, "the tokenizer_class has its own rules for tokens", shown(name), kKnownKinds);
  for (const char* key : {"add_bos_token", "add_eos_token"}) {
    if (flag(file, config, key, false)) {
      fail(file, std::string("the tokenizer asks for ") + key, "true", kNothingAdded);
    }
  }
  check_common_settings(file, config);
}

/// Returns true if the tokenizer class gives the end of text the roles that the files do not name.
bool has_default_roles(const Json& config) {
  const std::string name = token_text(member(config, "tokenizer_class"));
  return !name.starts_with("PreTrainedTokenizer") && name != "TokenizersBackend";
}

/// Reads added_tokens.json, tokenizer_config.json and special_tokens_map.json from the directory of
/// the vocabulary, like transformers.
void read_side_files(const fs::path& directory, ByteLevelBuilder& builder) {
  const std::string added_file = (directory / "added_tokens.json").string();
  const Json added_tokens = read_side_file(added_file);
  for (const auto& [content, id] : added_tokens.items())
    builder.add_added(added_file, content, id, false, true);
  const std::string file = (directory / "tokenizer_config.json").string();
  Json config = read_side_file(file);
  check_config(file, config);
  builder.definition.add_prefix_space =
      flag(file, config, "add_prefix_space", builder.definition.add_prefix_space);
  const Json added = member(config, "added_tokens_decoder");
  for (const auto& [id, entry] : added.items()) builder.add_added(file, entry, number_of(id));
  // In transformers the older file has precedence if the newer one lacks added_tokens_decoder.
  const std::string map = (directory / "special_tokens_map.json").string();
  const Json older = added.is_null() ? read_side_file(map) : Json();
  if (!older.is_null()) config.update(older);
  std::vector<std::string> roles;
  const auto take = [&](const char* key, const Json& token) {
    builder.check_role(older.contains(key) ? map : file, token);
    roles.push_back(token_text(token));
  };
  for (const char* role : kRoles) take(role, member(config, role));
  for (const char* list : kRoleLists)
    for (const Json& token : member(config, list)) take(list, token);
  const std::string end_of_text = token_text(member(config, "eos_token"));
  builder.set_end_of_text(end_of_text.empty() ? kEndOfText : end_of_text, !end_of_text.empty());
  if (has_default_roles(config))
    for (const char* role : {"bos_token", "unk_token"})
      if (!config.contains(role)) roles.push_back(kEndOfText);
  for (const std::string& content : roles) builder.add_special(content);
}

/// Compares a tokenizer.json with the vocab.json and merges.txt in its directory. Other programs
/// read these files, and they are saved with the model unchanged.
void compare_pair(const fs::path& directory, TokenizerDefinition& definition) {
  const std::string vocabulary = (directory / "vocab.json").string();
  const std::string merges = (directory / "merges.txt").string();
  std::error_code ignored;
  if (!fs::exists(vocabulary, ignored) || !fs::exists(merges, ignored)) return;
  std::string difference;
  try {
    ByteLevelBuilder pair(vocabulary);
    pair.add_vocabulary(read_json(vocabulary));
    read_merges_txt(merges, pair);
    const std::vector<std::string>& names = pair.definition.names;
    for (std::size_t id = 0; id < names.size() && difference.empty(); ++id)
      if (!names[id].empty() &&
          (id >= definition.names.size() || definition.names[id] != names[id]))
        difference = fmt::format("{}: has another token with the id {}", vocabulary, id);
    if (difference.empty() && pair.definition.merges != definition.merges)
      difference = fmt::format("{}: has other merges ({}) than tokenizer.json ({})", merges,
                               pair.definition.merges.size(), definition.merges.size());
  } catch (const UserError& error) {
    difference = error.what();
  }
  if (!difference.empty())
    definition.warnings.push_back(
        difference +
        "; deltapipe uses the tokenizer.json next to it, other programs may use this file");
}

void write_file(const fs::path& file, const std::string& text) {
  write_file_atomically(file.string(), text);
}

OrderedJson vocabulary_json(const TokenizerDefinition& definition) {
  OrderedJson vocabulary = OrderedJson::object();
  auto& object = vocabulary.get_ref<OrderedJson::object_t&>();
  for (std::size_t id = 0; id < definition.names.size(); ++id) {
    if (definition.names[id].empty()) continue;
    object.emplace_back(definition.names[id], id);  // operator[] searches linearly
  }
  return vocabulary;
}

OrderedJson tokenizer_json(const TokenizerDefinition& definition,
                           const std::vector<AddedToken>& added, const OrderedJson& vocabulary) {
  OrderedJson byte_level = {{"type", "ByteLevel"},
                            {"add_prefix_space", definition.add_prefix_space},
                            {"trim_offsets", true},
                            {"use_regex", true}};
  OrderedJson root = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = OrderedJson::array();
  for (const AddedToken& token : added) root["added_tokens"].push_back(added_json(token, true));
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = byte_level;
  root["post_processor"] = byte_level;
  root["post_processor"]["trim_offsets"] = false;
  root["decoder"] = byte_level;
  OrderedJson& model = root["model"];
  model = {{"type", "BPE"},
           {"dropout", nullptr},
           {"unk_token", nullptr},
           {"continuing_subword_prefix", ""},
           {"end_of_word_suffix", ""},
           {"fuse_unk", false},
           {"byte_fallback", false},
           {"ignore_merges", definition.ignore_merges}};
  model["vocab"] = vocabulary;
  model["merges"] = OrderedJson::array();
  for (const auto& [left, right] : definition.merges) {
    model["merges"].push_back(definition.names[static_cast<std::size_t>(left)] + " " +
                              definition.names[static_cast<std::size_t>(right)]);
  }
  return root;
}

OrderedJson tokenizer_config_json(const TokenizerDefinition& definition,
                                  const std::vector<AddedToken>& added) {
  // transformers 5 builds a GPT2Tokenizer from vocabulary and merges alone.
  const char* tokenizer_class =
      definition.ignore_merges ? "PreTrainedTokenizerFast" : "GPT2Tokenizer";
  OrderedJson config = {{"tokenizer_class", tokenizer_class},
                        {"add_prefix_space", definition.add_prefix_space},
                        {"clean_up_tokenization_spaces", false}};
  config["added_tokens_decoder"] = OrderedJson::object();
  for (const AddedToken& token : added) {
    config["added_tokens_decoder"][std::to_string(token.id)] = added_json(token, false);
  }
  for (const char* key : {"bos_token", "eos_token", "unk_token"}) {
    if (definition.end_of_text < 0) {
      config[key] = nullptr;
    } else {
      config[key] = definition.names[static_cast<std::size_t>(definition.end_of_text)];
    }
  }
  return config;
}

}  // namespace

TokenizerDefinition load_byte_level_json(const fs::path& path, const Json& root) {
  ByteLevelBuilder builder(path.string());
  read_byte_level_json(root, builder);
  read_side_files(path.parent_path(), builder);
  builder.check_merges(path.string());
  compare_pair(path.parent_path(), builder.definition);
  return std::move(builder.definition);
}

TokenizerDefinition load_byte_level_pair(const fs::path& vocabulary, const fs::path& merges) {
  ByteLevelBuilder builder(vocabulary.string());
  builder.add_vocabulary(read_json(vocabulary.string()));
  read_merges_txt(merges.string(), builder);
  read_side_files(vocabulary.parent_path(), builder);
  builder.check_merges(merges.string());
  return std::move(builder.definition);
}

void save_byte_level_files(const TokenizerDefinition& definition, const std::string& directory) {
  make_directory_for(directory);
  std::vector<AddedToken> added = definition.added;
  std::sort(added.begin(), added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  std::string merges = "#version: 0.2\n";
  for (const auto& [left, right] : definition.merges) {
    merges += definition.names[static_cast<std::size_t>(left)] + " " +
              definition.names[static_cast<std::size_t>(right)] + "\n";
  }
  const OrderedJson vocabulary = vocabulary_json(definition);
  const fs::path base(directory);
  write_file(base / "vocab.json", vocabulary.dump() + "\n");
  write_file(base / "merges.txt", merges);
  write_file(base / "tokenizer.json", tokenizer_json(definition, added, vocabulary).dump(1) + "\n");
  write_file(base / "tokenizer_config.json",
             tokenizer_config_json(definition, added).dump(2) + "\n");
}

}  // namespace deltapipe
