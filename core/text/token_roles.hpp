// SPDX-License-Identifier: BSD-3-Clause
// Tokens with a role in the samples of a classifier, as the files of tokenizers name them.
#pragma once

#include <filesystem>
#include <string>

#include "core/files/json.hpp"

namespace deltapipe {

/// Tokens with a role and their names in files that do not name them.
struct TokenRoles {
  std::string unknown = "[UNK]", begin = "[CLS]", separator = "[SEP]", padding = "[PAD]",
              mask = "[MASK]";
};

/// Reads begin and separator from the post_processor of a tokenizer.json: that of `begin A
/// separator` and `begin A separator B separator`. `supported` is the remedy for another one.
/// Throws UserError.
void read_post_processor(const std::string& file, const Json& root, const char* supported,
                         TokenRoles& roles);

/// Returns tokenizer_config.json, whose settings precede those of tokenizer.json, as in
/// transformers. If it lacks added_tokens_decoder, the older special_tokens_map.json has
/// precedence.
Json read_tokenizer_config(const std::filesystem::path& directory);

/// Refuses a tokenizer_class that `classes`, separated by spaces, does not name. Throws UserError.
void check_tokenizer_class(const std::string& file, const Json& config, std::string_view classes,
                           const char* supported);

/// Reads the names of tokens from tokenizer_config.json.
void read_roles(const Json& config, TokenRoles& roles);

}  // namespace deltapipe
