// SPDX-License-Identifier: BSD-3-Clause
// Numbers as text for people.
#pragma once

#include <cstdint>
#include <string>

namespace deltapipe {

/// Formats `value` with a printf format for one double. NaN is always "nan": printf would show its
/// sign, which depends on the processor.
std::string number_text(const char* format, double value);

/// Returns 16 lower-case digits.
std::string hex_digits(std::uint64_t value);

}  // namespace deltapipe
