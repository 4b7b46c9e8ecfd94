// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/token_roles.hpp"

#include <utility>

#include "core/text/tokenizer_json.hpp"

namespace deltapipe {
namespace {

using namespace token_json;

/// Returns true if a part of a template is the text `id`.
bool is_sequence(const Json& part, const char* id) {
  return member(member(part, "Sequence"), "id") == id;
}
std::string special_of(const Json& part) {
  return token_text(member(member(part, "SpecialToken"), "id"));
}

}  // namespace

void read_post_processor(const std::string& file, const Json& root, const char* supported,
                         TokenRoles& roles) {
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
    fail(file, "unknown post_processor", shown(type), supported);
  }
}

Json read_tokenizer_config(const std::filesystem::path& directory) {
  Json config = read_side_file(directory / "tokenizer_config.json");
  if (config.is_null()) config = Json::object();
  if (member(config, "added_tokens_decoder").is_null())
    if (const Json older = read_side_file(directory / "special_tokens_map.json"); !older.is_null())
      config.update(older);
  return config;
}

void check_tokenizer_class(const std::string& file, const Json& config, std::string_view classes,
                           const char* supported) {
  const Json& name = member(config, "tokenizer_class");
  if (name.is_null()) return;
  const std::string wanted = " " + token_text(name) + " ";
  if (wanted.size() < 3 || (" " + std::string(classes) + " ").find(wanted) == std::string::npos)
    fail(file, "the tokenizer_class has its own rules for tokens", shown(name), supported);
}

void read_roles(const Json& config, TokenRoles& roles) {
  for (const auto& [key, role] :
       {std::pair("unk_token", &roles.unknown), std::pair("cls_token", &roles.begin),
        std::pair("sep_token", &roles.separator), std::pair("pad_token", &roles.padding),
        std::pair("mask_token", &roles.mask)})
    if (const std::string token = token_text(member(config, key)); !token.empty()) *role = token;
}

}  // namespace deltapipe
