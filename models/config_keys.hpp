// SPDX-License-Identifier: BSD-3-Clause
// Typed and checked access to the keys of a config.json, for any model.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <sstream>
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

/// A key of a config.json and the member of a model's configuration that holds its value.
template <class Config>
struct IntegerField {
  const char* key;
  const char* other;  ///< second name of the key; null: none
  int Config::*value;
  int last;               ///< values are 1 to `last`
  bool nullable = false;  ///< null keeps the default
};
struct RealRule {
  const char* text;  ///< of a message, as in "'KEY' must be TEXT"
  bool (*holds)(double);
};
inline constexpr RealRule kProbability = {"a probability from 0 to below 1",
                                          [](double p) { return p >= 0 && p < 1; }};
inline constexpr RealRule kNormEpsilon = {"above 0 and below 1",
                                          [](double x) { return x > 0 && x < 1; }};
inline constexpr RealRule kInitializerRange = {"from 0 to below 100",
                                               [](double x) { return x >= 0 && x < 100; }};
template <class Config>
struct RealField {
  const char* key;
  double Config::*value;
  RealRule rule;
};

/// Returns "key = value" with all digits, for comparison between ranks.
template <class Value>
std::string fact(const char* key, const Value& value) {
  std::ostringstream text;
  text.precision(17);
  text << key << " = " << value;
  return text.str();
}

/// Throws UserError unless the rule holds.
void require_value(bool holds, const std::string& file, const std::string& rule,
                   const std::string& value);

template <class Config>
void read_field(const ConfigKeys& keys, const IntegerField<Config>& field, Config& config) {
  if (field.nullable && keys.find(field.key) == nullptr) return;
  if (field.other != nullptr)
    keys.integer(field.key, field.other, config.*field.value);
  else
    keys.integer(field.key, config.*field.value);
}
template <class Config>
void read_field(const ConfigKeys& keys, const RealField<Config>& field, Config& config) {
  keys.real(field.key, config.*field.value);
}

template <class Config>
void check_field(const std::string& file, const IntegerField<Config>& field, const Config& config) {
  const int value = config.*field.value;
  require_value(value >= 1 && value <= field.last, file,
                fmt::format("'{}' must be from 1 to {}", field.key, field.last),
                std::to_string(value));
}
template <class Config>
void check_field(const std::string& file, const RealField<Config>& field, const Config& config) {
  const double value = config.*field.value;
  require_value(field.rule.holds(value), file,
                fmt::format("'{}' must be {}", field.key, field.rule.text),
                fmt::format("{}", value));
}

/// Returns an id, or null, in the format of transformers.
Json json_of(const std::optional<int>& id);
/// Returns no id, one or several ids in the format of transformers.
Json json_of(const std::vector<int>& ids);

}  // namespace deltapipe
