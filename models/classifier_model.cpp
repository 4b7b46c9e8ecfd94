// SPDX-License-Identifier: BSD-3-Clause
#include "models/classifier_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/base/printable.hpp"
#include "models/config_file.hpp"

namespace deltapipe {

std::vector<std::string> read_classes(const ConfigFile& file, const SafetensorsReader* weights,
                                      const WeightNames& names,
                                      const std::vector<std::string>& layers,
                                      std::set<std::string>& fresh,
                                      std::vector<std::string>& warnings) {
  bool has_classifier = true;
  for (const std::string& layer : layers) {
    const std::string parameters[] = {layer + ".weight", layer + ".bias"};
    has_classifier = weights == nullptr || std::ranges::any_of(parameters, [&](const auto& name) {
                       return weights->contains(name) || weights->contains(names.saved(name));
                     });
    if (has_classifier) continue;
    fresh.insert(std::begin(parameters), std::end(parameters));
    warnings.push_back(fmt::format("{}: the weights have no {}: a new one is trained",
                                   printable(file.directory, 200),
                                   layer.substr(0, layer.find('.'))));
  }
  return has_classifier ? classes_of_classifier(file) : std::vector<std::string>();
}

}  // namespace deltapipe
