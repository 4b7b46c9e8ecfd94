// SPDX-License-Identifier: BSD-3-Clause
// Configuration of a DeBERTa-v2 or -v3 for classification from config.json in a Hugging Face
// directory.
#pragma once

#include <string>
#include <vector>

#include "core/kernels/attention/relative_buckets.hpp"
#include "models/encoder_config.hpp"

namespace deltapipe {

struct ConfigFile;

/// Shape and constants of a DebertaV2ForSequenceClassification. DeBERTa-v3 has the same
/// architecture.
struct DebertaConfig : TextEncoderConfig {
  bool position_biased_input = true;  ///< has a table of absolute positions
  int position_buckets = -1;          ///< not above 0: every distance has a relative position
  int max_relative_positions = -1;    ///< below 1: `positions`
  bool normalizes_relative = false;   ///< norm_rel_ebd = "layer_norm"
  bool shares_attention_key = false;  ///< content's projections are those of relative positions
  bool content_to_position = false;   ///< "c2p" in pos_att_type
  bool position_to_content = false;   ///< "p2c" in pos_att_type
  int convolution_width = 0;          ///< tokens; 0: no convolution after the first block
  Activation convolution_activation = Activation::gelu_erf;
  Activation pooler_activation = Activation::gelu_erf;
  bool trains_relative = false;  ///< trains relative embeddings; a setting of training, not saved

  DebertaConfig() {
    layer_norm_epsilon = 1e-7;
    vocabulary = 128100;
  }
  RelativeBuckets buckets() const {
    return {position_buckets, max_relative_positions < 1 ? positions : max_relative_positions};
  }
  /// Reads everything but `classes`. Throws UserError that names the key, its value and the
  /// supported values.
  static DebertaConfig read(const ConfigFile& file);
  /// Checks the ranges; `file` appears in messages.
  void check(const std::string& file) const;
  /// Returns "key = value" of everything that changes results.
  std::vector<std::string> facts() const;
  /// Writes DIRECTORY/config.json (atomically), which transformers loads as
  /// DebertaV2ForSequenceClassification.
  void save(const std::string& directory) const;

 private:
  void put(Json& json) const;
};

}  // namespace deltapipe
