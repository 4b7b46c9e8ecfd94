// SPDX-License-Identifier: BSD-3-Clause
#include "models/class_names.hpp"

#include <fmt/format.h>

#include <set>

#include "core/base/error.hpp"

namespace deltapipe {

namespace {

constexpr const char* kSupportedLabels = "deltapipe reads id2label as transformers writes it";
constexpr int kMostClasses = 1 << 20;

}  // namespace

std::vector<std::string> read_class_names(const ConfigFile& file) {
  const ConfigKeys keys(file.json, file.path, kSupportedLabels);
  std::vector<std::string> classes;
  if (const Json* const names = keys.find("id2label")) {
    if (!names->is_object() || names->empty() || names->size() > kMostClasses)
      keys.refuse("'id2label' must be an object with a name for each class", shown(*names),
                  kSupportedLabels);
    for (std::size_t i = 0; i < names->size(); ++i) {
      const auto name = names->find(std::to_string(i));
      if (name == names->end() || !name->is_string())
        keys.refuse(fmt::format("'id2label' must name classes 0 to {}", names->size() - 1),
                    shown(*names), kSupportedLabels);
      classes.push_back(name->get<std::string>());
    }
    if (std::set<std::string>(classes.begin(), classes.end()).size() < classes.size())
      keys.refuse("'id2label' must not name a class twice", shown(*names),
                  "give every class a name of its own");
    return classes;
  }
  int count = 0;
  keys.integer("num_labels", count);
  require_value(count >= 0 && count <= kMostClasses, file.path,
                fmt::format("'num_labels' must be from 1 to {}", kMostClasses),
                std::to_string(count));
  for (int i = 0; i < count; ++i) classes.push_back(fmt::format("LABEL_{}", i));
  return classes;
}

std::vector<std::string> classes_of_classifier(const ConfigFile& file) {
  std::vector<std::string> classes = read_class_names(file);
  if (classes.empty()) classes = {"LABEL_0", "LABEL_1"};
  require_value(classes.size() >= 2, file.path, "'id2label' must name two classes or more",
                std::to_string(classes.size()));
  return classes;
}

void check_classifier(const ConfigKeys& keys) {
  if (const Json* problem = keys.find("problem_type");
      problem != nullptr && *problem != "single_label_classification")
    keys.refuse("'problem_type' must be \"single_label_classification\"", shown(*problem),
                "deltapipe trains classifiers with one label for each sample");
  if (const Json* quantised = keys.find("quantization_config"))
    keys.refuse("'quantization_config' says that the weights are quantised", shown(*quantised),
                "use the weights from before the quantisation");
}

void put_class_names(Json& json, const std::vector<std::string>& classes) {
  json.erase("num_labels");
  Json names = Json::object(), ids = Json::object();
  for (std::size_t i = 0; i < classes.size(); ++i) {
    names[std::to_string(i)] = classes[i];
    ids[classes[i]] = i;
  }
  json["id2label"] = std::move(names);
  json["label2id"] = std::move(ids);
}

}  // namespace deltapipe
