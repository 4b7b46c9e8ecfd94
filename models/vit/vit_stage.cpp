// SPDX-License-Identifier: BSD-3-Clause
#include "models/vit/vit_stage.hpp"

#include <fmt/format.h>

#include "models/blocks/classification_head.hpp"
#include "models/blocks/transformer_block.hpp"
#include "models/encoder_blocks.hpp"
#include "models/vit/patch_embedding.hpp"

namespace deltapipe {

namespace {

/// Sites of dropout: the embedding's, then three of each block.
constexpr std::uint32_t kEmbeddingSite = 0, kFirstBlockSite = 1;

template <class Real>
std::unique_ptr<Block<Real>> make_block(const VitConfig& config, int block, int bucket,
                                        ParameterArena<Real>& parameters) {
  const std::string layer = fmt::format("encoder.layer.{}.", block);
  const std::uint32_t site = kFirstBlockSite + block * kEncoderSitesABlock;
  return std::make_unique<TransformerBlock<Real>>(
      parameters,
      AttentionNames{layer + "layernorm_before", layer + "attention.attention.qkv",
                     layer + "attention.output.dense"},
      encoder_attention(config, site),
      MlpNames{layer + "layernorm_after", layer + "intermediate.dense", layer + "output.dense"},
      encoder_mlp(config, site), bucket);
}

}  // namespace

template <class Real>
StageParts<Real> parts_of(const VitConfig& config, const StagePart& part,
                          ParameterArena<Real>& parameters) {
  const int channels = config.channels;
  StageParts<Real> parts;
  // Places are patches, after the class token.
  const RowGrid grid = {.leading = 1,
                        .height = config.image.height / config.patch,
                        .width = config.image.width / config.patch,
                        .stride = config.patch};
  parts.input_shape = [channels, grid](int tokens) {
    return BoundaryShape{tokens, channels, grid};
  };
  parts.longest = config.tokens();
  int bucket = 0;
  if (part.first)
    parts.first = std::make_unique<PatchEmbedding<Real>>(
        parameters, "embeddings.", config.image, config.patch, channels, config.embedding_dropout,
        kEmbeddingSite, bucket++);
  for (int i = 0; i < part.blocks; ++i, ++bucket)
    parts.blocks.push_back({make_block(config, part.first_block + i, bucket, parameters), bucket});
  if (part.last)
    parts.last = std::make_unique<ClassificationHead<Real>>(
        parameters, ClassificationNames{.dense = "", .output = "classifier", .norm = "layernorm"},
        ClassificationOptions{.channels = channels,
                              .classes = static_cast<int>(config.classes.size()),
                              .epsilon = config.layer_norm_epsilon,
                              .layout = WeightLayout::outputs_inputs},
        bucket);
  return parts;
}

ModelCost vit_cost(const VitConfig& config) {
  const double C = config.channels;
  const auto classes = static_cast<double>(config.classes.size());
  const double patches = config.tokens() - 1;
  const double values = static_cast<double>(config.patch) * config.patch * config.image.channels;
  return {.block = encoder_block_cost(config, config.tokens()),
          .head = 3 * 2 * C * classes,
          .stem = 2 * 2 * patches * values * C};
}

template StageParts<float> parts_of(const VitConfig&, const StagePart&, ParameterArena<float>&);
template StageParts<double> parts_of(const VitConfig&, const StagePart&, ParameterArena<double>&);

}  // namespace deltapipe
