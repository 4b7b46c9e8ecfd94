// SPDX-License-Identifier: BSD-3-Clause
// Names and initial values of GPT-2's weights.
#pragma once

#include <cstdint>

#include "models/gpt2/gpt2_config.hpp"
#include "models/weights.hpp"

namespace deltapipe {

/// Returns the names of GPT2LMHeadModel. The masks that old versions of transformers saved count as
/// the model's.
const WeightNames& gpt2_names();

/// Returns true if the files hold an lm_head.weight that differs from their token embedding.
/// transformers 5 then keeps both, regardless of tie_word_embeddings in config.json. Throws
/// UserError for weights that cannot be read.
bool has_own_head(const SafetensorsReader& reader);

/// Sets Hugging Face's initial values: matrices normal(0, initializer_range), smaller by sqrt(2
/// n_layer) if they write to the residual stream; biases 0, norm weights 1.
template <class Real>
void initialise_weights(const Gpt2Config& config, std::uint64_t seed,
                        ParameterArena<Real>& parameters);

}  // namespace deltapipe
