// SPDX-License-Identifier: BSD-3-Clause
#include "models/gpt2/gpt2_weights.hpp"

#include <cmath>

namespace deltapipe {

const WeightNames& gpt2_names() {
  static const WeightNames names = {
      "GPT2LMHeadModel", "transformer.", {"lm_head.weight"}, {"wte.", "wpe.", "h.", "ln_f."},
      "n_layer",         "h.",           "ln_1.weight"};
  return names;
}

bool has_own_head(const SafetensorsReader& reader) {
  const std::string head = "lm_head.weight";
  const std::string embedding = gpt2_names().stored(reader, "wte.weight");
  return reader.contains(head) && reader.contains(embedding) &&
         !same_matrices(reader, head, embedding);
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

template void initialise_weights<float>(const Gpt2Config&, std::uint64_t, ParameterArena<float>&);
template void initialise_weights<double>(const Gpt2Config&, std::uint64_t, ParameterArena<double>&);

}  // namespace deltapipe
