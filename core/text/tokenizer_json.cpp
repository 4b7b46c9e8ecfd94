// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/tokenizer_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/files/input_file.hpp"

namespace deltapipe::token_json {

namespace fs = std::filesystem;

void fail(const std::string& file, const std::string& what, const std::string& value,
          const std::string& remedy, std::size_t line) {
  throw UserError({.what = what, .file = file, .line = line, .value = value, .remedy = remedy});
}

Json read_json(const std::string& file) {
  return read_json_file(file, file_limit::tokenizer);
}

Json read_side_file(const fs::path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return {};
  Json object = read_json(file.string());
  if (!object.is_object()) fail(file.string(), "this is not a JSON object", shown(object), "");
  return object;
}

void for_each_line(const std::string& text,
                   const std::function<void(const std::string& line, std::size_t number)>& take) {
  std::size_t number = 0;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    std::string line = text.substr(start, end - start);
    start = end + 1;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    take(line, ++number);
  }
}

const Json& member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool flag(const std::string& file, const Json& object, const char* key, bool otherwise) {
  const Json& value = member(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) fail(file, fmt::format("'{}' is not a boolean", key), shown(value), "");
  return value.get<bool>();
}

std::string token_text(const Json& token) {
  const Json& content = token.is_object() ? member(token, "content") : token;
  return content.is_string() ? content.get<std::string>() : std::string();
}

std::vector<Json> parts_of(const Json& root, const char* key, const char* list) {
  const Json& part = member(root, key);
  if (part.is_null()) return {};
  const Json& parts = member(part, list);
  if (member(part, "type") != "Sequence" || !parts.is_array()) return {part};
  return parts.get<std::vector<Json>>();
}

void expect_plain(const std::string& file, const Json& token) {
  for (const char* key : {"lstrip", "rstrip", "single_word"})
    if (flag(file, token, key, false))
      fail(file, fmt::format("added token {} asks for {}", shown(member(token, "content")), key),
           "true", "deltapipe only supports added tokens without it");
}

void check_common_settings(const std::string& file, const Json& config) {
  if (flag(file, config, "split_special_tokens", false))
    fail(file, "the tokenizer asks for split_special_tokens", "true",
         "deltapipe finds special tokens in texts; set it to false");
  if (const Json& files = member(config, "fast_tokenizer_files"); !files.empty())
    fail(file, "fast_tokenizer_files names other files than tokenizer.json", shown(files),
         "remove the key and keep the file to use as tokenizer.json");
}

Json number_of(const std::string& text) {
  const std::optional<std::int64_t> number = whole_number(text);
  return number ? Json(*number) : Json(text);
}

OrderedJson added_json(const AddedToken& token, bool with_id) {
  OrderedJson entry = OrderedJson::object();
  if (with_id) entry["id"] = token.id;
  entry["content"] = token.content;
  entry["single_word"] = false;
  entry["lstrip"] = false;
  entry["rstrip"] = false;
  entry["normalized"] = token.normalized;
  entry["special"] = token.special;
  return entry;
}

void make_directory_for(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail(directory, "cannot create the directory", error.message(), "");
}

}  // namespace deltapipe::token_json
