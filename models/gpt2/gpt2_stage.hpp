// SPDX-License-Identifier: BSD-3-Clause
// GPT-2 (Radford et al. 2019) as a stage of consecutive blocks. It computes the same as Hugging
// Face's GPT2LMHeadModel or, with classes, GPT2ForSequenceClassification.
#pragma once

#include "models/blocks/block_stage.hpp"
#include "models/gpt2/gpt2_config.hpp"

namespace deltapipe {

/// Returns the floating-point operations of one sample of T tokens, forward and backward.
ModelCost gpt2_cost(const Gpt2Config& config, int tokens);

/// Sets Hugging Face's initial values: matrices normal(0, initializer_range), smaller by sqrt(2
/// n_layer) if they write to the residual stream; biases 0, norm weights 1.
template <class Real>
void initialise_weights(const Gpt2Config& config, std::uint64_t seed,
                        ParameterArena<Real>& parameters);

template <class Real>
StageParts<Real> parts_of(const Gpt2Config& config, const StagePart& part,
                          ParameterArena<Real>& parameters);
template <class Real>
using Gpt2Stage = ModelStage<Real, Gpt2Config>;

}  // namespace deltapipe
