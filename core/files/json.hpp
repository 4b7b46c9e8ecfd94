// SPDX-License-Identifier: BSD-3-Clause
// Untrusted JSON: UTF-8 must be valid, keys must be unique, depth and number of values are limited,
// and time is linear in the text. A mistake is a UserError with file, line and column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace deltapipe {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  ///< members in the order of their insertion

/// Origin and limits of a JSON text.
struct JsonSource {
  std::string file;          ///< as the user named it
  std::size_t line = 1;      ///< line of the text's first character; 0: the file has no lines
  std::string subject = "";  ///< role of the text in the file: "its header "
  std::string remedy = "copy or download the file again";
  /// True: NaN, Infinity and -Infinity count as null. Python's json writes them although JSON does
  /// not allow them.
  bool nan_is_null = false;
  int max_depth = 64;                             ///< nesting of arrays and objects
  std::size_t max_values = std::size_t{1} << 24;  ///< values in one value that is returned
};

/// Returns the value that `text` consists of.
Json parse_json(std::string_view text, const JsonSource& source);

/// Parses a whole file of at most max_bytes.
Json read_json_file(const std::string& path, std::uint64_t max_bytes);

/// Calls take(key, value) for each wanted member of the object in `text`, in order, and keeps none
/// of them. For large objects, and for objects with few relevant members.
void for_each_json_member(std::string_view text, const JsonSource& source,
                          const std::function<bool(const std::string& key)>& wanted,
                          const std::function<void(const std::string& key, Json&& value)>& take);

/// Returns the beginning of a value, for messages; the cost depends only on the text returned.
std::string shown(const Json& value);

}  // namespace deltapipe
