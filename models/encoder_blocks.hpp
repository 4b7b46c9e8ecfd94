// SPDX-License-Identifier: BSD-3-Clause
// Options of the blocks of encoders, from their configuration.
#pragma once

#include <cstdint>
#include <string>

#include "models/blocks/post_norm_block.hpp"
#include "models/blocks/transformer_branches.hpp"
#include "models/encoder_config.hpp"

namespace deltapipe {

/// Sites of dropout of a block: two of attention, and the MLP's.
inline constexpr std::uint32_t kEncoderSitesABlock = 3;

/// Attention of a block whose first site of dropout is `site`. Weights have torch.nn.Linear's
/// layout.
inline AttentionOptions encoder_attention(const EncoderConfig& config, std::uint32_t site) {
  return {.channels = config.channels,
          .heads = config.heads,
          .causal = false,
          .layout = WeightLayout::outputs_inputs,
          .epsilon = config.layer_norm_epsilon,
          .attention_dropout = config.attention_dropout,
          .dropout = config.hidden_dropout,
          .dropout_site = site};
}
inline MlpOptions encoder_mlp(const EncoderConfig& config, std::uint32_t site) {
  return {.channels = config.channels,
          .hidden = config.hidden,
          .activation = config.activation,
          .layout = WeightLayout::outputs_inputs,
          .epsilon = config.layer_norm_epsilon,
          .dropout = config.hidden_dropout,
          .dropout_site = site + 2};
}
/// Names of BERT's layers in the block `layer`, which ends with ".".
inline PostNormNames post_norm_names(const std::string& layer) {
  return {layer + "attention.output.dense",
          layer + "attention.output.LayerNorm",
          {layer + "output.LayerNorm", layer + "intermediate.dense", layer + "output.dense"}};
}

}  // namespace deltapipe
