// SPDX-License-Identifier: BSD-3-Clause
// Configuration of a BERT for classification from config.json in a Hugging Face directory.
#pragma once

#include <string>
#include <vector>

#include "models/encoder_config.hpp"

namespace deltapipe {

struct ConfigFile;

/// Shape and constants of a BertForSequenceClassification with absolute positions.
struct BertConfig : TextEncoderConfig {
  BertConfig() {
    vocabulary = 30522;
    segments = 2;
  }
  /// Reads everything but `classes`. Throws UserError that names the key, its value and the
  /// supported values.
  static BertConfig read(const ConfigFile& file);
  /// Checks the ranges; `file` appears in messages.
  void check(const std::string& file) const;
  /// Returns "key = value" of everything that changes results.
  std::vector<std::string> facts() const;
  /// Writes DIRECTORY/config.json (atomically), which transformers loads as
  /// BertForSequenceClassification.
  void save(const std::string& directory) const;
};

}  // namespace deltapipe
