// SPDX-License-Identifier: BSD-3-Clause
#include "models/config_keys.hpp"

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace deltapipe {

void ConfigKeys::refuse(const std::string& what, const std::string& value,
                        const std::string& remedy) const {
  throw UserError({.what = what, .file = file_, .value = value, .remedy = remedy});
}

void ConfigKeys::integer(const char* key, int& target) const {
  const Json* value = find_or_null(key);
  if (value == nullptr) return;
  // Compares any 64-bit number before it is narrowed.
  if (!value->is_number_integer() || *value > 2147483647 || *value < 0) {
    refuse(fmt::format("'{}' must be a whole number from 0 to 2147483647", key), shown(*value),
           "correct config.json");
  }
  target = value->get<int>();
}

void ConfigKeys::integer(const char* key, const char* other, int& target) const {
  integer(key, target);
  if (!json_.contains(other)) return;
  int value = 0;
  integer(other, value);
  if (json_.contains(key) && value != target)
    refuse(fmt::format("'{}' and '{}' are the same and differ", key, other),
           fmt::format("{} and {}", target, value), "remove one of them");
  target = value;
}

void ConfigKeys::token_id(const char* key, std::optional<int>& target) const {
  if (!json_.contains(key)) return;
  target.reset();
  if (find(key) == nullptr) return;
  int id = 0;
  integer(key, id);
  target = id;
}

void ConfigKeys::token_ids(const char* key, std::vector<int>& target) const {
  if (!json_.contains(key)) return;
  target.clear();
  const Json* value = find(key);
  if (value == nullptr) return;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    const Json one = {{key, id}};
    target.emplace_back();
    ConfigKeys(one, file_, supported_).integer(key, target.back());
  }
}

void ConfigKeys::real(const char* key, double& target) const {
  const Json* value = find_or_null(key);
  if (value == nullptr) return;
  if (!value->is_number()) {
    refuse(fmt::format("'{}' must be a number", key), shown(*value), "correct config.json");
  }
  target = value->get<double>();
}

void ConfigKeys::boolean(const char* key, bool& target) const {
  const Json* value = find_or_null(key);
  if (value == nullptr) return;
  if (!value->is_boolean()) {
    refuse(fmt::format("'{}' must be true or false", key), shown(*value), "correct config.json");
  }
  target = value->get<bool>();
}

void ConfigKeys::expect(const char* key, const Json& expected) const {
  const Json* value = find_or_null(key);
  if (value == nullptr || *value == expected) return;
  refuse(fmt::format("'{}' is supported as {} only", key, expected.dump()), shown(*value),
         supported_);
}

const Json* ConfigKeys::find(const char* key) const {
  const Json* value = find_or_null(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const Json* ConfigKeys::find_or_null(const char* key) const {
  const auto found = json_.find(key);
  return found == json_.end() ? nullptr : &*found;
}

void require_value(bool holds, const std::string& file, const std::string& rule,
                   const std::string& value) {
  if (holds) return;
  throw UserError({.what = rule, .file = file, .value = value, .remedy = "correct config.json"});
}

Json json_of(const std::optional<int>& id) {
  return id ? Json(*id) : Json();
}

Json json_of(const std::vector<int>& ids) {
  if (ids.empty()) return {};
  return ids.size() == 1 ? Json(ids[0]) : Json(ids);
}

}  // namespace deltapipe
