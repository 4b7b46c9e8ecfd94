// SPDX-License-Identifier: BSD-3-Clause
// Configuration of a BERT for classification from config.json in a Hugging Face directory.
#pragma once

#include <string>
#include <vector>

#include "core/kernels/layers/activations.hpp"

namespace deltapipe {

struct ConfigFile;

/// Shape and constants of a BertForSequenceClassification with absolute positions.
struct BertConfig {
  int layers = 12;
  int heads = 12;
  int channels = 768;      ///< C, divisible by heads
  int hidden = 3072;       ///< width of the MLP
  int positions = 512;     ///< the longest sequence T
  int vocabulary = 30522;  ///< V
  int segments = 2;        ///< type_vocab_size
  Activation activation = Activation::gelu_erf;
  double layer_norm_epsilon = 1e-12;
  double initializer_range = 0.02;
  double hidden_dropout = 0.1;     ///< before residual sums
  double embedding_dropout = 0.1;  ///< a config.json has one value for both
  double attention_dropout = 0.1;
  double classifier_dropout = -1;    ///< negative: hidden_dropout
  std::vector<std::string> classes;  ///< names; empty: not known yet

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
