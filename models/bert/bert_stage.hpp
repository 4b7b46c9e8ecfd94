// SPDX-License-Identifier: BSD-3-Clause
// A stage of a BERT for classification, as a list of blocks.
#pragma once

#include "models/bert/bert_config.hpp"
#include "models/blocks/block_stage.hpp"

namespace deltapipe {

/// Embeddings on the first stage, PostNormBlocks, and pooler and classifier on the last one.
/// config.classes has at least two names. Parameters have the names of transformers, except that
/// query, key and value are one matrix [3C, C], `qkv`.
template <class Real>
StageParts<Real> parts_of(const BertConfig& config, const StagePart& part,
                          ParameterArena<Real>& parameters);
template <class Real>
using BertStage = ModelStage<Real, BertConfig>;

/// Returns the operations of one block and of the head for a sample of `tokens` tokens.
ModelCost bert_cost(const BertConfig& config, int tokens);

}  // namespace deltapipe
