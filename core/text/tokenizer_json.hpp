// SPDX-License-Identifier: BSD-3-Clause
// Helpers of the readers and writers of tokenizer files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/files/json.hpp"
#include "core/text/added_tokens.hpp"

namespace deltapipe::token_json {

/// Remedy for a file that is damaged or was not written by a tokenizer's library.
inline constexpr const char* kDownloadAgain = "download the file again";

/// Throws UserError.
[[noreturn]] void fail(const std::string& file, const std::string& what, const std::string& value,
                       const std::string& remedy, std::size_t line = 0);

/// Reads a file of at most the size of a tokenizer.
Json read_json(const std::string& file);
/// Reads an object from a file; null if the file does not exist.
Json read_side_file(const std::filesystem::path& file);

/// Calls take(line, number) for every line of a text, without LF or CR LF; numbers count from 1.
void for_each_line(const std::string& text,
                   const std::function<void(const std::string& line, std::size_t number)>& take);

/// Returns a member of an object, or null.
const Json& member(const Json& object, const char* key);
bool flag(const std::string& file, const Json& object, const char* key, bool otherwise);
/// Returns the content of a token, which is a text or an object; empty for anything else.
std::string token_text(const Json& token);
/// Returns the parts of a member, which may be a Sequence (`list` names its list); null: none.
std::vector<Json> parts_of(const Json& root, const char* key, const char* list);

/// Refuses a token that absorbs adjacent blanks or is not recognised within words.
void expect_plain(const std::string& file, const Json& token);
/// Refuses settings of tokenizer_config.json that change tokens outside of the tokenizer.
void check_common_settings(const std::string& file, const Json& config);

/// Returns the id in a key of added_tokens_decoder; a key that is not a number remains a string.
Json number_of(const std::string& text);

/// Returns an entry of added_tokens.
OrderedJson added_json(const AddedToken& token, bool with_id);

/// Creates a directory for tokenizer files.
void make_directory_for(const std::string& directory);

}  // namespace deltapipe::token_json
