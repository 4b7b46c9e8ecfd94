// SPDX-License-Identifier: BSD-3-Clause
#include "models/parameter_patterns.hpp"

#include <fnmatch.h>

namespace deltapipe {

bool matches_parameter(const std::string& pattern, const std::string& name) {
  std::size_t end = name.size();
  while (end != std::string::npos && end > 0) {
    if (::fnmatch(pattern.c_str(), name.substr(0, end).c_str(), 0) == 0) return true;
    end = name.rfind('.', end - 1);
  }
  return false;
}

std::vector<std::string> matching_parameters(const Model& model, const std::string& pattern) {
  std::vector<std::string> names;
  for (const ParameterInfo& p : model.parameters({0, model.shape().blocks, true, true}))
    if (!p.statistic && (matches_parameter(pattern, p.name) ||
                         matches_parameter(pattern, model.saved_name(p.name))))
      names.push_back(p.name);
  return names;
}

}  // namespace deltapipe
