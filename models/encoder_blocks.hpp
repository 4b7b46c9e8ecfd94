// SPDX-License-Identifier: BSD-3-Clause
// What encoders consist of, from their configuration.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "models/blocks/block_stage.hpp"
#include "models/blocks/classification_head.hpp"
#include "models/blocks/post_norm_block.hpp"
#include "models/blocks/text_embedding.hpp"
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

/// Sites of dropout of an encoder of texts, before those of its blocks.
inline constexpr std::uint32_t kTextEmbeddingSite = 0, kTextHeadSite = 1, kTextSites = 2;

/// Makes the first end of an encoder of texts, whose parameters have the buckets 0 and 1. A model
/// without `has_positions` has no table of positions.
template <class Real>
void add_text_embedding(const TextEncoderConfig& config, bool has_positions,
                        ParameterArena<Real>& parameters, StageParts<Real>& parts) {
  const std::uint64_t C = config.channels;
  const std::string name = "embeddings.";
  EmbeddingTables tables;
  if (has_positions)
    tables.positions = parameters.add(name + "position_embeddings.weight",
                                      {std::uint64_t(config.positions), C}, true, 0);
  if (config.segments > 0)
    tables.segments = parameters.add(name + "token_type_embeddings.weight",
                                     {std::uint64_t(config.segments), C}, true, 0);
  const NormLayer<Real> norm(parameters, name + "LayerNorm", C, config.layer_norm_epsilon, 0);
  const auto tokens = std::make_shared<TokenTable<Real>>(
      parameters, name + "word_embeddings.weight", config.vocabulary, config.channels, false);
  tokens->declare(1);
  parts.first = std::make_unique<TextEmbedding<Real>>(
      parameters, tables, norm, tokens, config.embedding_dropout, kTextEmbeddingSite, 0);
  parts.token_embedding = tokens;
}

/// Returns the last end of an encoder of texts: pooler, with tanh or another activation, and
/// classifier.
template <class Real>
std::unique_ptr<LastEnd<Real>> make_text_head(const TextEncoderConfig& config,
                                              std::optional<Activation> activation,
                                              ParameterArena<Real>& parameters, int bucket) {
  return std::make_unique<ClassificationHead<Real>>(
      parameters, ClassificationNames{"pooler.dense", "classifier"},
      ClassificationOptions{.channels = config.channels,
                            .classes = static_cast<int>(config.classes.size()),
                            .activation = activation,
                            .layout = WeightLayout::outputs_inputs,
                            .dropout = config.head_dropout(),
                            .dropout_site = kTextHeadSite},
      bucket);
}

}  // namespace deltapipe
