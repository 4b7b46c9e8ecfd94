// SPDX-License-Identifier: BSD-3-Clause
// Names of a classifier's classes in config.json.
#pragma once

#include <string>
#include <vector>

#include "models/config_file.hpp"
#include "models/config_keys.hpp"

namespace deltapipe {

/// Returns the names of id2label, in the order of their numbers, or, if that is absent, LABEL_0 ...
/// LABEL_(num_labels - 1); empty if the file has neither. Throws UserError unless id2label names
/// classes 0 ... n - 1.
std::vector<std::string> read_class_names(const ConfigFile& file);
/// Returns read_class_names() or, if the file names none, the two that transformers assumes. Throws
/// UserError for one class.
std::vector<std::string> classes_of_classifier(const ConfigFile& file);
/// Refuses what classifiers here do not compute: other problems than one label for each sample, and
/// quantised weights. Throws UserError.
void check_classifier(const ConfigKeys& keys);
/// Sets id2label and label2id.
void put_class_names(Json& json, const std::vector<std::string>& classes);

}  // namespace deltapipe
