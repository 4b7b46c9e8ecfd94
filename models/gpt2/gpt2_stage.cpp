// SPDX-License-Identifier: BSD-3-Clause
#include "models/gpt2/gpt2_stage.hpp"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "models/blocks/classification_head.hpp"
#include "models/blocks/language_head.hpp"
#include "models/blocks/text_embedding.hpp"
#include "models/blocks/transformer_block.hpp"
#include "models/weights.hpp"

namespace deltapipe {

namespace {

constexpr const char* kTokenTable = "wte.weight";
/// Sites of dropout: the embedding's, then three of each block.
constexpr std::uint32_t kEmbeddingSite = 0;
constexpr int kAttentionSite = 0, kMlpSite = 2, kSitesABlock = 3;

template <class Real>
std::unique_ptr<Block<Real>> make_block(const Gpt2Config& config, int block, int bucket,
                                        ParameterArena<Real>& parameters) {
  const std::string h = fmt::format("h.{}.", block);
  const std::uint32_t site = kEmbeddingSite + 1 + block * kSitesABlock;
  const AttentionOptions attention{.channels = config.n_embd,
                                   .heads = config.n_head,
                                   .epsilon = config.layer_norm_epsilon,
                                   .attention_dropout = config.attn_pdrop,
                                   .dropout = config.resid_pdrop,
                                   .dropout_site = site + kAttentionSite};
  const MlpOptions mlp{.channels = config.n_embd,
                       .hidden = config.n_inner,
                       .epsilon = config.layer_norm_epsilon,
                       .dropout = config.resid_pdrop,
                       .dropout_site = site + kMlpSite};
  return std::make_unique<TransformerBlock<Real>>(
      parameters, AttentionNames{h + "ln_1", h + "attn.c_attn", h + "attn.c_proj"}, attention,
      MlpNames{h + "ln_2", h + "mlp.c_fc", h + "mlp.c_proj"}, mlp, bucket);
}

/// Returns the end of a language model. The bucket of a shared table is final last.
template <class Real>
std::unique_ptr<LastEnd<Real>> make_language_head(const Gpt2Config& config, int bucket,
                                                  TokenTable<Real>& tokens,
                                                  ParameterArena<Real>& parameters) {
  const std::uint64_t C = config.n_embd, V = config.vocabulary_size;
  const NormLayer<Real> norm(parameters, "ln_f", C, config.layer_norm_epsilon, bucket);
  const int matrix = config.is_tied() ? tokens.declare(bucket + 1)
                                      : parameters.add("lm_head.weight", {V, C}, true, bucket + 1);
  parameters.set_operands({matrix});
  const std::vector<int> buckets =
      config.is_tied() ? std::vector<int>{bucket} : std::vector<int>{bucket + 1, bucket};
  return std::make_unique<LanguageHead<Real>>(parameters, norm, matrix, buckets);
}

template <class Real>
std::unique_ptr<LastEnd<Real>> make_classification_head(const Gpt2Config& config, int bucket,
                                                        ParameterArena<Real>& parameters) {
  return std::make_unique<ClassificationHead<Real>>(
      parameters, ClassificationNames{.dense = "", .output = "score", .norm = "ln_f"},
      ClassificationOptions{.channels = config.n_embd,
                            .classes = static_cast<int>(config.classes.size()),
                            .pooling = Pooling::last,
                            .epsilon = config.layer_norm_epsilon,
                            .layout = WeightLayout::outputs_inputs,
                            .output_bias = Bias::no},
      bucket);
}

}  // namespace

template <class Real>
StageParts<Real> parts_of(const Gpt2Config& config, const StagePart& part,
                          ParameterArena<Real>& parameters) {
  const std::uint64_t C = config.n_embd;
  const bool tied = config.is_tied();
  const int channels = config.n_embd;
  StageParts<Real> parts;
  parts.input_shape = [channels](int tokens) { return BoundaryShape{tokens, channels}; };
  parts.longest = config.n_positions;
  const auto tokens = std::make_shared<TokenTable<Real>>(parameters, kTokenTable,
                                                         config.vocabulary_size, channels, tied);
  int bucket = 0;
  if (part.first) {
    const int table =
        parameters.add("wpe.weight", {std::uint64_t(config.n_positions), C}, false, bucket++);
    if (!tied)
      tokens->declare(bucket++);
    else if (!part.last && tokens->wte_frozen())
      tokens->declare_copy(bucket++);
    parts.first = std::make_unique<TextEmbedding<Real>>(
        parameters, EmbeddingTables{table}, std::nullopt, tokens, config.embd_pdrop, kEmbeddingSite,
        parameters.info()[table].bucket);
  }
  for (int i = 0; i < part.blocks; ++i, ++bucket)
    parts.blocks.push_back({make_block(config, part.first_block + i, bucket, parameters), bucket});
  if (part.last)
    parts.last = config.is_classifier() ? make_classification_head(config, bucket, parameters)
                                        : make_language_head(config, bucket, *tokens, parameters);
  if (part.first || (part.last && tied)) parts.token_embedding = tokens;
  return parts;
}

ModelCost gpt2_cost(const Gpt2Config& config, int tokens) {
  const double C = config.n_embd, F = config.n_inner, V = config.vocabulary_size, T = tokens;
  ModelCost cost;
  // A multiply-add counts as two operations, and the backward pass as two forward passes.
  // Attention's two products run over half of T x T, and its scores are recomputed in the backward
  // pass.
  cost.block = 3 * 2 * T * (4 * C * C + 2 * C * F) + 2 * T * T / 2 * C * 7;
  cost.head = config.is_classifier() ? 3 * 2 * C * static_cast<double>(config.classes.size())
                                     : 3 * 2 * T * C * V;
  return cost;
}

template <class Real>
void initialise_weights(const Gpt2Config& config, std::uint64_t seed,
                        ParameterArena<Real>& parameters) {
  const auto deviation = [&](const ParameterInfo& p) {
    const bool writes_residual = p.name.ends_with("c_proj.weight");
    return config.initializer_range / (writes_residual ? std::sqrt(2.0 * config.n_layer) : 1);
  };
  initialize_normal<Real>(seed, deviation, parameters);
}

template StageParts<float> parts_of(const Gpt2Config&, const StagePart&, ParameterArena<float>&);
template StageParts<double> parts_of(const Gpt2Config&, const StagePart&, ParameterArena<double>&);
template void initialise_weights<float>(const Gpt2Config&, std::uint64_t, ParameterArena<float>&);
template void initialise_weights<double>(const Gpt2Config&, std::uint64_t, ParameterArena<double>&);

}  // namespace deltapipe
