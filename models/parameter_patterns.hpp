// SPDX-License-Identifier: BSD-3-Clause
// Patterns for names of parameters, as in decks.
#pragma once

#include <string>
#include <vector>

#include "models/model.hpp"

namespace deltapipe {

/// Returns true if the pattern matches the name, or that of a module that contains the parameter.
/// Patterns use the shell's *, ? and [...] (POSIX fnmatch; * also matches dots): "h.0" and
/// "h.*.attn" match "h.0.attn.c_attn.weight".
bool matches_parameter(const std::string& pattern, const std::string& name);

/// Returns the names of the model's parameters that the pattern matches, in the order of the model.
/// It compares their own names and the names under which transformers saves them.
std::vector<std::string> matching_parameters(const Model& model, const std::string& pattern);

}  // namespace deltapipe
