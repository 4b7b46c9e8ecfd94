// SPDX-License-Identifier: BSD-3-Clause
// Makes text of outside origin (paths, tokens, lines) safe for a message on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace deltapipe {

/// Returns `text` as one line of valid UTF-8 that cannot control a terminal. Bytes that are not
/// UTF-8 and ASCII control characters become \xHH (or \n, \r, \t); other control, separator and
/// direction characters become \u{H...}. Text longer than `most` bytes ends in "...". Printable
/// text is unchanged, so that a second call changes nothing.
std::string printable(std::string_view text, std::size_t most = std::string_view::npos);

}  // namespace deltapipe
