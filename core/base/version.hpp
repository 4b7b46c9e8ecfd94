// SPDX-License-Identifier: BSD-3-Clause
// Version and revision of deltapipe, for outputs and the command line.
#pragma once

#include <string_view>

namespace deltapipe {

/// "MAJOR.MINOR.PATCH"
std::string_view version();
/// Returns the output of `git describe --always --dirty` for the source; "unknown" outside a git
/// checkout.
std::string_view revision();

}  // namespace deltapipe
