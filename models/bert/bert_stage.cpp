// SPDX-License-Identifier: BSD-3-Clause
#include "models/bert/bert_stage.hpp"

#include <fmt/format.h>

#include "models/encoder_blocks.hpp"

namespace deltapipe {

namespace {

template <class Real>
std::unique_ptr<Block<Real>> make_block(const BertConfig& config, int block, int bucket,
                                        ParameterArena<Real>& parameters) {
  const std::string layer = fmt::format("encoder.layer.{}.", block);
  const std::uint32_t site = kTextSites + block * kEncoderSitesABlock;
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
  const int channels = config.channels;
  StageParts<Real> parts;
  parts.input_shape = [channels](int tokens) { return BoundaryShape{tokens, channels}; };
  parts.longest = config.positions;
  int bucket = 0;
  if (part.first) {
    add_text_embedding(config, true, parameters, parts);
    bucket = 2;
  }
  for (int i = 0; i < part.blocks; ++i, ++bucket)
    parts.blocks.push_back({make_block(config, part.first_block + i, bucket, parameters), bucket});
  if (part.last) parts.last = make_text_head(config, std::nullopt, parameters, bucket);
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
