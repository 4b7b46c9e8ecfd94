// SPDX-License-Identifier: BSD-3-Clause
// Text of outside origin (paths, tokens, lines) made fit for a message on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace deltapipe {

/// `text` as one line of valid UTF-8 without anything that steers a terminal: bytes that are not
/// UTF-8 and ASCII control characters become \xHH (or \n, \r, \t), other control, separator and
/// direction characters \u{H...}. What is longer than `most` bytes ends in "...". Printable text
/// stays as it is, so that applying this twice changes nothing.
std::string printable(std::string_view text, std::size_t most = std::string_view::npos);

}  // namespace deltapipe
