// SPDX-License-Identifier: BSD-3-Clause
// Typed and checked access to the keys of a config.json, for any model.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/files/json.hpp"

namespace deltapipe {

/// Typed access to the keys of one config.json. An absent key keeps the default. So does null if
/// transformers allows it; otherwise null is an error.
class ConfigKeys {
 public:
  /// `json` outlives the object. `supported` is the remedy for what the model does not compute.
  ConfigKeys(const Json& json, std::string file, std::string supported)
      : json_(json), file_(std::move(file)), supported_(std::move(supported)) {}

  [[noreturn]] void refuse(const std::string& what, const std::string& value,
                           const std::string& remedy) const;
  void integer(const char* key, int& target) const;

  /// Reads a key that has a second name. In transformers the second name wins; here two different
  /// values are an error.
  void integer(const char* key, const char* other, int& target) const;

  /// Reads a token id or null.
  void token_id(const char* key, std::optional<int>& target) const;

  /// Reads a token id, a list of them, or null.
  void token_ids(const char* key, std::vector<int>& target) const;
  void real(const char* key, double& target) const;
  void boolean(const char* key, bool& target) const;

  /// Requires that the key is absent or has this value.
  void expect(const char* key, const Json& expected) const;

  /// Returns null for an absent key and for null.
  const Json* find(const char* key) const;
  const Json* find_or_null(const char* key) const;

 private:
  const Json& json_;
  std::string file_, supported_;
};

/// Returns an id, or null, in the format of transformers.
Json json_of(const std::optional<int>& id);
/// Returns no id, one or several ids in the format of transformers.
Json json_of(const std::vector<int>& ids);

}  // namespace deltapipe
