// SPDX-License-Identifier: BSD-3-Clause
// A stage of a DeBERTa for classification, as a list of blocks.
#pragma once

#include <set>
#include <string>

#include "models/blocks/block_stage.hpp"
#include "models/deberta/deberta_config.hpp"

namespace deltapipe {

/// Embeddings on the first stage, PostNormBlocks with disentangled attention, the first of them
/// with a convolution if the model has one, and pooler and classifier on the last stage.
/// config.classes has at least two names. Parameters have the names of transformers, except that
/// query, key and value are one matrix [3C, C], `qkv`, and the two projections of relative
/// positions one matrix [2C, C], `pos_qk`.
template <class Real>
StageParts<Real> parts_of(const DebertaConfig& config, const StagePart& part,
                          ParameterArena<Real>& parameters);

/// Adds the relative embedding's parameters, which every stage uses, to `frozen`, unless they are
/// trained.
std::set<std::string> deberta_frozen(const DebertaConfig& config, std::set<std::string> frozen);

template <class Real>
class DebertaStage final : public ModelStage<Real, DebertaConfig> {
 public:
  DebertaStage(const DebertaConfig& config, const StagePart& part,
               const std::set<std::string>& frozen = {})
      : ModelStage<Real, DebertaConfig>(config, part, deberta_frozen(config, frozen)) {}
};

/// Returns the operations of one block and of the head for a sample of `tokens` tokens.
ModelCost deberta_cost(const DebertaConfig& config, int tokens);

}  // namespace deltapipe
