// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "app/deck/settings.hpp"

namespace deltapipe {

/// Settings that were changed and that nothing reads, as others of the deck are: of boundaries
/// whose codec has no use for them, and of evaluations. Codecs that are turned off keep their
/// settings for later.
std::vector<std::string> warnings_without_effect(const Settings& settings);

}  // namespace deltapipe
