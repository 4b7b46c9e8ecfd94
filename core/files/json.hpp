// SPDX-License-Identifier: BSD-3-Clause
// JSON from outside, read without trust: valid UTF-8, no key twice, limits on depth and on the
// number of values, time linear in the text. A mistake is a UserError with file, line and column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace deltapipe {

using Json = nlohmann::json;

/// Origin and limits of a JSON text.
struct JsonSource {
  std::string file;          ///< as the user named it
  std::size_t line = 1;      ///< of the text's first character; 0: the file has no lines
  std::string subject = "";  ///< what the text is in the file: "its header "
  std::string remedy = "copy or download the file again";
  /// NaN, Infinity and -Infinity, which Python's json writes although JSON does not allow them,
  /// count as null.
  bool nan_is_null = false;
  int max_depth = 64;                             ///< arrays and objects in each other
  std::size_t max_values = std::size_t{1} << 24;  ///< in one value that is handed out
};

/// The one value that `text` is.
Json parse_json(std::string_view text, const JsonSource& source);

/// Parses a whole file of at most max_bytes.
Json read_json_file(const std::string& path, std::uint64_t max_bytes);

/// Calls take(key, value) for each wanted member of the object that `text` is, in order, and keeps
/// none of them: for large objects, and for objects with few relevant members.
void for_each_json_member(std::string_view text, const JsonSource& source,
                          const std::function<bool(const std::string& key)>& wanted,
                          const std::function<void(const std::string& key, Json&& value)>& take);

/// The beginning of a value, for messages; costs no more than what it shows.
std::string shown(const Json& value);

}  // namespace deltapipe
