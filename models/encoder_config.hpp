// SPDX-License-Identifier: BSD-3-Clause
// The part of config.json that the encoders of transformers share.
#pragma once

#include <string>
#include <vector>

#include "core/files/json.hpp"
#include "core/kernels/layers/activations.hpp"
#include "models/config_keys.hpp"

namespace deltapipe {

struct EncoderConfig {
  int layers = 12;
  int heads = 12;
  int channels = 768;  ///< C, divisible by heads
  int hidden = 3072;   ///< width of the MLP
  Activation activation = Activation::gelu_erf;
  double layer_norm_epsilon = 1e-12;
  double initializer_range = 0.02;
  double hidden_dropout = 0;     ///< before residual sums
  double embedding_dropout = 0;  ///< a config.json has one value for both
  double attention_dropout = 0;
  std::vector<std::string> classes;  ///< names; empty: not known yet

 protected:
  /// Reads everything but `classes`. Throws UserError that names the key, its value and the
  /// supported values.
  void read_encoder(const ConfigKeys& keys);
  /// Checks the ranges; `file` appears in messages. Throws UserError.
  void check_encoder(const std::string& file) const;
  /// Adds "key = value" of everything that changes results.
  void add_facts(std::vector<std::string>& facts) const;
  void put_encoder(Json& json) const;
};

/// An encoder that classifies texts.
struct TextEncoderConfig : EncoderConfig {
  int positions = 512;             ///< the longest sequence T
  int vocabulary = 0;              ///< V
  int segments = 0;                ///< type_vocab_size; 0: no table
  double classifier_dropout = -1;  ///< negative: hidden_dropout

  TextEncoderConfig() { hidden_dropout = embedding_dropout = attention_dropout = 0.1; }
  double head_dropout() const {
    return classifier_dropout < 0 ? hidden_dropout : classifier_dropout;
  }
};

/// Reads the dropout before a classifier, if the file has one; `file` appears in messages. Throws
/// UserError for negative values, which stand for the dropout of the layers in a configuration.
void read_classifier_dropout(const ConfigKeys& keys, const std::string& file, const char* key,
                             double& dropout);

/// Returns the operations of one block for a sample of `tokens` rows, forward and backward.
double encoder_block_cost(const EncoderConfig& config, int tokens);

}  // namespace deltapipe
