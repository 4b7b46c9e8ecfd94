// SPDX-License-Identifier: BSD-3-Clause
// Names of activations in config.json.
#pragma once

#include "core/kernels/layers/activations.hpp"
#include "models/config_keys.hpp"

namespace deltapipe {

/// Reads an activation; an absent key keeps it. Throws UserError for an unsupported name.
void read_activation(const ConfigKeys& keys, const char* key, Activation& activation);
/// Returns the name that transformers gives an activation.
const char* name_of(Activation activation);

}  // namespace deltapipe
