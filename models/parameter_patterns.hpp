// SPDX-License-Identifier: BSD-3-Clause
// Patterns that name parameters, as decks have them.
#pragma once

#include <string>
#include <vector>

#include "models/model.hpp"

namespace deltapipe {

/// The pattern, of the shell's kind with *, ? and [...] (POSIX fnmatch; * also crosses dots),
/// matches the name or that of a module that the parameter belongs to: "h.0" and "h.*.attn" match
/// "h.0.attn.c_attn.weight".
bool matches_parameter(const std::string& pattern, const std::string& name);

/// Names of the model's parameters that the pattern matches, by their own name or the one that
/// transformers saves them under; in the order of the model.
std::vector<std::string> matching_parameters(const Model& model, const std::string& pattern);

}  // namespace deltapipe
