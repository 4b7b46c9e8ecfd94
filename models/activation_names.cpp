// SPDX-License-Identifier: BSD-3-Clause
#include "models/activation_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

namespace deltapipe {

namespace {

struct ActivationName {
  const char* name;  ///< in transformers
  Activation activation;
};
/// The first name of an activation is the one that is saved.
constexpr std::array kActivations = {
    ActivationName{"gelu", Activation::gelu_erf},
    ActivationName{"gelu_python", Activation::gelu_erf},
    ActivationName{"gelu_new", Activation::gelu_tanh},
    ActivationName{"gelu_pytorch_tanh", Activation::gelu_tanh},
    ActivationName{"relu", Activation::relu},
};

}  // namespace

void read_activation(const ConfigKeys& keys, const char* key, Activation& activation) {
  const Json* const value = keys.find_or_null(key);
  if (value == nullptr) return;
  for (const ActivationName& known : kActivations)
    if (*value == known.name) {
      activation = known.activation;
      return;
    }
  std::string names;
  for (const ActivationName& known : kActivations)
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  keys.refuse(fmt::format("'{}' must be one of {}", key, names), shown(*value),
              "use a model with one of these activations");
}

const char* name_of(Activation activation) {
  return std::ranges::find(kActivations, activation, &ActivationName::activation)->name;
}

}  // namespace deltapipe
