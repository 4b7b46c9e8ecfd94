// SPDX-License-Identifier: BSD-3-Clause
#include "models/bert/bert_stage.hpp"

#include <fmt/format.h>

#include "models/blocks/classification_head.hpp"
#include "models/blocks/post_norm_block.hpp"
#include "models/blocks/text_embedding.hpp"
#include "models/encoder_blocks.hpp"

namespace deltapipe {

namespace {

/// Sites of dropout: the embedding's, the head's, then three of each block.
constexpr std::uint32_t kEmbeddingSite = 0, kHeadSite = 1, kFirstBlockSite = 2;

template <class Real>
std::unique_ptr<Block<Real>> make_block(const BertConfig& config, int block, int bucket,
                                        ParameterArena<Real>& parameters) {
  const std::string layer = fmt::format("encoder.layer.{}.", block);
  const std::uint32_t site = kFirstBlockSite + block * kEncoderSitesABlock;
  const AttentionOptions options = encoder_attention(config, site);
  return std::make_unique<PostNormBlock<Real>>(
      parameters,
      std::make_unique<DotProductAttention<Real>>(parameters, layer + "attention.self.qkv", options,
                                                  bucket),
      post_norm_names(layer), options, encoder_mlp(config, site), bucket);
}

}  // namespace

template <class Real>
StageParts<Real> parts_of(const BertConfig& config, const StagePart& part,
                          ParameterArena<Real>& parameters) {
  const std::uint64_t C = config.channels;
  const int channels = config.channels;
  StageParts<Real> parts;
  parts.input_shape = [channels](int tokens) { return BoundaryShape{tokens, channels}; };
  parts.longest = config.positions;
  int bucket = 0;
  if (part.first) {
    const std::string name = "embeddings.";
    const int positions = parameters.add(name + "position_embeddings.weight",
                                         {std::uint64_t(config.positions), C}, true, bucket);
    const int segments = parameters.add(name + "token_type_embeddings.weight",
                                        {std::uint64_t(config.segments), C}, true, bucket);
    const NormLayer<Real> norm(parameters, name + "LayerNorm", C, config.layer_norm_epsilon,
                               bucket);
    const auto tokens = std::make_shared<TokenTable<Real>>(
        parameters, name + "word_embeddings.weight", config.vocabulary, channels, false);
    tokens->declare(bucket + 1);
    parts.first = std::make_unique<TextEmbedding<Real>>(
        parameters, EmbeddingTables{positions, segments}, norm, tokens, config.embedding_dropout,
        kEmbeddingSite, bucket);
    bucket += 2;
    parts.token_embedding = tokens;
  }
  for (int i = 0; i < part.blocks; ++i, ++bucket)
    parts.blocks.push_back({make_block(config, part.first_block + i, bucket, parameters), bucket});
  if (part.last)
    parts.last = std::make_unique<ClassificationHead<Real>>(
        parameters, ClassificationNames{"pooler.dense", "classifier"},
        ClassificationOptions{.channels = channels,
                              .classes = static_cast<int>(config.classes.size()),
                              .layout = WeightLayout::outputs_inputs,
                              .dropout = config.head_dropout(),
                              .dropout_site = kHeadSite},
        bucket);
  return parts;
}

ModelCost bert_cost(const BertConfig& config, int tokens) {
  const double C = config.channels;
  const auto classes = static_cast<double>(config.classes.size());
  return {.block = encoder_block_cost(config, tokens), .head = 3 * 2 * C * (C + classes)};
}

template StageParts<float> parts_of(const BertConfig&, const StagePart&, ParameterArena<float>&);
template StageParts<double> parts_of(const BertConfig&, const StagePart&, ParameterArena<double>&);

}  // namespace deltapipe
