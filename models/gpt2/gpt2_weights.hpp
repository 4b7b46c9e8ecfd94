// SPDX-License-Identifier: BSD-3-Clause
// GPT-2's weights from and to Hugging Face directories.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/files/safetensors.hpp"
#include "core/stage/parameters.hpp"
#include "models/gpt2/gpt2_config.hpp"

namespace deltapipe {

/// UserError unless the files hold these parameters in these shapes. Takes no memory for them, so
/// that it can come before a stage is built by a config.json that may be wrong.
void check_weights(const SafetensorsReader& reader, const std::vector<ParameterInfo>& parameters);

/// Reads the tensors of `parameters`, and no others; names with and without "transformer." in front
/// are known. UserError for a missing tensor, another shape, or values that are not finite.
template <class Real>
void load_weights(const SafetensorsReader& reader, ParameterArena<Real>& parameters);

/// True if the files hold an lm_head.weight that is another matrix than their token embedding.
/// transformers 5 then keeps both, whatever tie_word_embeddings in config.json says. UserError for
/// weights that cannot be read.
bool has_own_head(const SafetensorsReader& reader);

/// Names of tensors that are no parameters of a GPT2LMHeadModel: heads of other tasks. The masks
/// that old versions of transformers saved do not count.
std::vector<std::string> foreign_tensors(const SafetensorsReader& reader);

/// Hugging Face's initial values: matrices normal(0, initializer_range), those that write to the
/// residual stream smaller by sqrt(2 n_layer); biases 0, norm weights 1. Keyed by seed and tensor
/// name, so that every partition gets the same.
template <class Real>
void initialise_weights(const Gpt2Config& config, std::uint64_t seed,
                        ParameterArena<Real>& parameters);

/// The name under which GPT2LMHeadModel saves a parameter.
std::string saved_name(const std::string& parameter);

}  // namespace deltapipe
