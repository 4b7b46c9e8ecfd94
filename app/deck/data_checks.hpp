// SPDX-License-Identifier: BSD-3-Clause
// Contradictions between settings of the model, its tokenizer and its data.
#pragma once

#include <string>
#include <vector>

#include "app/deck/settings.hpp"

namespace deltapipe::deck {

/// Throws the UserError of settings that contradict each other.
[[noreturn]] void refuse_settings(std::vector<std::string> keys, std::string what,
                                  std::string value, std::string remedy);

// Throw UserError that names keys.
void check_model(const Settings& settings);
void check_tokenizer(const Settings& settings);
void check_data(const Settings& settings);

}  // namespace deltapipe::deck
