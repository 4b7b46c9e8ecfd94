// SPDX-License-Identifier: BSD-3-Clause
#include "models/classifier_model.hpp"

#include <fmt/format.h>

#include "core/base/printable.hpp"
#include "models/config_file.hpp"

namespace deltapipe {

std::vector<std::string> read_text_classes(const ConfigFile& file, const SafetensorsReader* weights,
                                           const WeightNames& names, std::set<std::string>& fresh,
                                           std::vector<std::string>& warnings) {
  add_fresh(file, weights, names, {"pooler.dense.weight", "pooler.dense.bias"}, "pooler", fresh,
            warnings);
  if (add_fresh(file, weights, names, {"classifier.weight", "classifier.bias"}, "classifier", fresh,
                warnings))
    return {};
  return classes_of_classifier(file);
}

bool add_fresh(const ConfigFile& file, const SafetensorsReader* weights, const WeightNames& names,
               const std::set<std::string>& parameters, const char* layer,
               std::set<std::string>& fresh, std::vector<std::string>& warnings) {
  if (weights == nullptr) return false;
  for (const std::string& name : parameters)
    if (weights->contains(name) || weights->contains(names.saved(name))) return false;
  fresh.insert(parameters.begin(), parameters.end());
  warnings.push_back(fmt::format("{}: the weights have no {}: a new one is trained",
                                 printable(file.directory, 200), layer));
  return true;
}

}  // namespace deltapipe
