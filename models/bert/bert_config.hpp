// SPDX-License-Identifier: BSD-3-Clause
// Configuration of a BERT for classification from config.json in a Hugging Face directory.
#pragma once

#include <string>
#include <vector>

#include "models/encoder_config.hpp"

namespace deltapipe {

struct ConfigFile;

/// Shape and constants of a BertForSequenceClassification with absolute positions.
struct BertConfig : EncoderConfig {
  int positions = 512;             ///< the longest sequence T
  int vocabulary = 30522;          ///< V
  int segments = 2;                ///< type_vocab_size
  double classifier_dropout = -1;  ///< negative: hidden_dropout

  BertConfig() { hidden_dropout = embedding_dropout = attention_dropout = 0.1; }
  double head_dropout() const {
    return classifier_dropout < 0 ? hidden_dropout : classifier_dropout;
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
