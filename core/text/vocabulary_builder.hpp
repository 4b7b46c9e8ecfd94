// SPDX-License-Identifier: BSD-3-Clause
// Tokens and ids as the files of tokenizers give them, checked against the existing ones.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/files/json.hpp"
#include "core/text/token_roles.hpp"
#include "core/text/tokenizer.hpp"
#include "core/text/tokenizer_json.hpp"

namespace deltapipe {

/// Definition has `names`, the tokens by id, and `added`, the AddedTokens.
template <class Definition>
class VocabularyBuilder {
 public:
  /// `supported` is the remedy for a vocabulary of another form.
  VocabularyBuilder(std::string file, const char* supported)
      : file_(std::move(file)), supported_(supported) {}

  Definition definition;

  const std::string& file() const { return file_; }
  bool is_added(const std::string& content) const { return added_.contains(content); }

  /// Adds the tokens of an object { token: id }. Throws UserError.
  void add_vocabulary(const Json& vocabulary) {
    if (!vocabulary.is_object() || vocabulary.empty())
      token_json::fail(file_, "the vocabulary is not a JSON object of tokens and ids",
                       shown(vocabulary), supported_);
    set_size(vocabulary.size());
    for (const auto& [name, id] : vocabulary.items()) add_token(name, usable_id(id, name));
  }
  /// Limits ids by the number of the vocabulary's tokens.
  void set_size(std::size_t tokens) { id_limit_ = 4 * tokens + 65536; }
  /// Adds a token with a new name and a new id; `line` counts from 1, 0: none. Throws UserError.
  void add_token(const std::string& name, std::uint64_t id, std::size_t line = 0) {
    if (name.empty()) token_json::fail(file_, "a token is empty", std::to_string(id), "", line);
    if (!ids_.emplace(name, static_cast<std::int32_t>(id)).second)
      token_json::fail(file_, "the vocabulary has a token twice", name, token_json::kDownloadAgain,
                       line);
    if (id >= definition.names.size()) definition.names.resize(id + 1);
    if (!definition.names[id].empty())
      token_json::fail(file_, "two tokens have the same id", std::to_string(id),
                       token_json::kDownloadAgain);
    definition.names[id] = name;
  }

  /// Adds an added token, which may already be in the vocabulary; its id is null then or the same.
  /// Throws UserError.
  void add_added(const std::string& file, const std::string& content, const Json& id, bool special,
                 bool normalized) {
    if (content.empty()) token_json::fail(file, "an added token is empty", "", "give it a text");
    if (is_added(content)) return;
    const std::int32_t known = id_of(content);
    if (known < 0)
      add_token(content, usable_id(id, content));
    else if (!id.is_null() && id != known)
      token_json::fail(file, "added token '" + content + "' has another id in the vocabulary",
                       shown(id), fmt::format("use {}", known));
    add_known(content, id_of(content), special, normalized);
  }

  /// Adds a token with a role, which texts may contain, if the vocabulary has it. Returns its id;
  /// -1: not in the vocabulary.
  std::int32_t add_role(const std::string& content) {
    const std::int32_t id = id_of(content);
    if (id >= 0 && !is_added(content)) add_known(content, id, true, false);
    return id;
  }
  /// Adds a token with the role that tokenizer_config.json calls `key`. Throws UserError if the
  /// vocabulary lacks it.
  std::int32_t add_required_role(const std::string& content, const char* key) {
    const std::int32_t id = add_role(content);
    if (id < 0)
      token_json::fail(file_, std::string("the vocabulary lacks the ") + key, content,
                       fmt::format("name one of its tokens as {} in tokenizer_config.json", key));
    return id;
  }

  /// Returns the marks of samples; begin and separator must be in the vocabulary. Adds mask and
  /// padding, if the vocabulary has them. Throws UserError.
  TextMarks add_marks(const TokenRoles& roles) {
    const TextMarks marks = {.begin = add_required_role(roles.begin, "cls_token"),
                             .separator = add_required_role(roles.separator, "sep_token"),
                             .padding = std::max(add_role(roles.padding), 0)};
    (void)add_role(roles.mask);
    return marks;
  }

  /// Refuses tokens that only added_tokens.json names, which older versions of transformers write.
  /// Throws UserError.
  void check_added_tokens_file(const std::filesystem::path& directory) const {
    const std::string file = (directory / "added_tokens.json").string();
    const Json tokens = token_json::read_side_file(file);
    for (const auto& [content, id] : tokens.items()) {
      if (content.empty()) token_json::fail(file, "an added token is empty", "", "give it a text");
      if (!is_added(content))
        token_json::fail(file, "the added token is searched in normalised text", content,
                         "deltapipe only supports added tokens of tokenizer.json and "
                         "tokenizer_config.json, with normalized = false");
    }
  }

 protected:
  /// Returns the id of a token; -1: not in the vocabulary.
  std::int32_t id_of(const std::string& name) const {
    const auto found = ids_.find(name);
    return found == ids_.end() ? -1 : found->second;
  }
  std::uint64_t usable_id(const Json& id, const std::string& name) const {
    if (!id.is_number_integer() || id < 0 || id >= id_limit_)
      token_json::fail(file_, "token '" + name + "' has no usable id", shown(id),
                       "ids count from 0 without large gaps");
    return id.get<std::uint64_t>();
  }
  /// Adds an added token without checks; -1: a name without an id.
  void add_known(const std::string& content, std::int32_t id, bool special, bool normalized) {
    definition.added.push_back({content, id, special, normalized});
    added_.insert(content);
  }

 private:
  std::string file_;
  const char* supported_;
  std::uint64_t id_limit_ = 0;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::unordered_set<std::string> added_;  ///< contents of definition.added
};

}  // namespace deltapipe
