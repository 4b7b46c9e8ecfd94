// SPDX-License-Identifier: BSD-3-Clause
// Loads and saves GPT-2's weights in Hugging Face directories.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/files/safetensors.hpp"
#include "core/stage/parameters.hpp"
#include "models/gpt2/gpt2_config.hpp"

namespace deltapipe {

/// Throws UserError unless the files hold these parameters in these shapes. Allocates no memory for
/// them, so that it can run before a stage is built from a config.json that may be wrong.
void check_weights(const SafetensorsReader& reader, const std::vector<ParameterInfo>& parameters);

/// Reads only the tensors of `parameters`. Accepts names with and without the prefix
/// "transformer.". Throws UserError for a missing tensor, another shape, or values that are not
/// finite.
template <class Real>
void load_weights(const SafetensorsReader& reader, ParameterArena<Real>& parameters);

/// Returns true if the files hold an lm_head.weight that differs from their token embedding.
/// transformers 5 then keeps both, regardless of tie_word_embeddings in config.json. Throws
/// UserError for weights that cannot be read.
bool has_own_head(const SafetensorsReader& reader);

/// Returns the names of tensors that are not parameters of a GPT2LMHeadModel, such as heads of
/// other tasks. The masks that old versions of transformers saved do not count.
std::vector<std::string> foreign_tensors(const SafetensorsReader& reader);

/// Sets Hugging Face's initial values: matrices normal(0, initializer_range), smaller by sqrt(2
/// n_layer) if they write to the residual stream; biases 0, norm weights 1. The values depend on
/// seed and tensor name, so that every partition gets the same.
template <class Real>
void initialise_weights(const Gpt2Config& config, std::uint64_t seed,
                        ParameterArena<Real>& parameters);

/// Returns the name under which GPT2LMHeadModel saves a parameter.
std::string saved_name(const std::string& parameter);

}  // namespace deltapipe
