// SPDX-License-Identifier: BSD-3-Clause
#include "models/deberta/deberta_stage.hpp"

#include <fmt/format.h>

#include <utility>

#include "models/blocks/convolved_block.hpp"
#include "models/blocks/disentangled_self_attention.hpp"
#include "models/encoder_blocks.hpp"

namespace deltapipe {

namespace {

/// Sites of dropout after those of kTextSites: the convolution's, then four of each block.
constexpr std::uint32_t kConvolutionSite = kTextSites, kFirstBlockSite = kConvolutionSite + 1,
                        kSitesABlock = kEncoderSitesABlock + 1;

RelativeEmbeddingNames relative_names(const DebertaConfig& config) {
  return {"encoder.rel_embeddings", config.normalizes_relative ? "encoder.LayerNorm" : ""};
}

/// Returns the name of the projections of relative positions in a block; see WeightNames::split.
std::string position_projections(const DebertaConfig& config, const std::string& layer) {
  if (config.shares_attention_key) return "";
  const std::string self = layer + "attention.self.";
  return self + (!config.content_to_position   ? "pos_query_proj"
                 : !config.position_to_content ? "pos_key_proj"
                                               : "pos_qk");
}

template <class Real>
std::unique_ptr<Block<Real>> make_block(const DebertaConfig& config, int block, int bucket,
                                        ParameterArena<Real>& parameters,
                                        const std::shared_ptr<RelativeEmbedding<Real>>& relative) {
  const std::string layer = fmt::format("encoder.layer.{}.", block);
  const std::uint32_t site = kFirstBlockSite + block * kSitesABlock;
  const AttentionOptions options = encoder_attention(config, site);
  auto attention = std::make_unique<DisentangledSelfAttention<Real>>(
      parameters,
      DisentangledNames{layer + "attention.self.qkv", position_projections(config, layer)},
      DisentangledOptions{options, config.content_to_position, config.position_to_content,
                          site + kEncoderSitesABlock},
      relative, bucket);
  auto transformer = std::make_unique<PostNormBlock<Real>>(parameters, std::move(attention),
                                                           post_norm_names(layer), options,
                                                           encoder_mlp(config, site), bucket);
  if (block > 0 || config.convolution_width == 0) return transformer;
  return std::make_unique<ConvolvedBlock<Real>>(
      parameters, std::move(transformer), "encoder.conv.conv", "encoder.conv.LayerNorm",
      TextConvolutionOptions{.channels = config.channels,
                             .width = config.convolution_width,
                             .activation = config.convolution_activation,
                             .epsilon = config.layer_norm_epsilon,
                             .dropout = config.hidden_dropout,
                             .dropout_site = kConvolutionSite},
      bucket);
}

}  // namespace

template <class Real>
StageParts<Real> parts_of(const DebertaConfig& config, const StagePart& part,
                          ParameterArena<Real>& parameters) {
  const int channels = config.channels;
  StageParts<Real> parts;
  parts.input_shape = [channels](int tokens) { return BoundaryShape{tokens, channels}; };
  parts.longest = config.positions;
  int bucket = 0;
  if (part.first) {
    add_text_embedding(config, config.position_biased_input, parameters, parts);
    bucket = 2;
  }
  const auto relative = std::make_shared<RelativeEmbedding<Real>>(
      parameters, relative_names(config), config.buckets(), channels, config.layer_norm_epsilon,
      part.first, bucket);
  if (relative->trained()) {
    parts.common = relative;
    ++bucket;
  }
  for (int i = 0; i < part.blocks; ++i, ++bucket)
    parts.blocks.push_back(
        {make_block(config, part.first_block + i, bucket, parameters, relative), bucket});
  if (part.last) parts.last = make_text_head(config, config.pooler_activation, parameters, bucket);
  return parts;
}

std::set<std::string> deberta_frozen(const DebertaConfig& config, std::set<std::string> frozen) {
  if (config.trains_relative) return frozen;
  const RelativeEmbeddingNames names = relative_names(config);
  frozen.insert(names.table + ".weight");
  if (!names.norm.empty()) frozen.insert({names.norm + ".weight", names.norm + ".bias"});
  return frozen;
}

ModelCost deberta_cost(const DebertaConfig& config, int tokens) {
  const double C = config.channels, T = tokens;
  const RelativeBuckets buckets = config.buckets();
  const double positions = buckets.row(tokens - 1) - buckets.row(1 - tokens) + 1;
  const double kinds = config.content_to_position + config.position_to_content;
  const auto classes = static_cast<double>(config.classes.size());
  // Scores by relative positions, computed twice, and their two gradients. Projections of relative
  // positions are shared by the samples of a micro-batch and are not counted.
  return {.block = encoder_block_cost(config, tokens) + 2 * T * positions * C * 4 * kinds,
          .head = 3 * 2 * C * (C + classes),
          .stem = 3 * 2 * T * C * C * config.convolution_width};
}

template StageParts<float> parts_of(const DebertaConfig&, const StagePart&, ParameterArena<float>&);
template StageParts<double> parts_of(const DebertaConfig&, const StagePart&,
                                     ParameterArena<double>&);

}  // namespace deltapipe
