// SPDX-License-Identifier: BSD-3-Clause
// Contradictions between codec settings. Needs no kernels, so that decks use it as well.
#pragma once

#include <optional>

#include "core/base/error.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe {

/// Returns the first contradiction: text, value, remedy, and keys without their section. Returns
/// nothing if a codec can be made from the settings. Ranges of single settings are not checked.
std::optional<Mistake> contradiction_in(const CodecSettings& settings);

}  // namespace deltapipe
