// SPDX-License-Identifier: BSD-3-Clause
// Which codec settings contradict each other. Knows no kernels, so that decks use it as well.
#pragma once

#include <optional>

#include "core/base/error.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe {

/// Text, value and remedy of the first contradiction, and keys without their section; none: the
/// settings make a codec. Ranges of single settings are not looked at.
std::optional<Mistake> contradiction_in(const CodecSettings& settings);

}  // namespace deltapipe
