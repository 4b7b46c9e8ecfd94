// SPDX-License-Identifier: BSD-3-Clause
// Numbers as text for people.
#pragma once

#include <cstdint>
#include <string>

namespace deltapipe {

/// `value` by a format of printf for one double. NaN is "nan", whatever its sign, which printf
/// shows and which depends on the processor.
std::string number_text(const char* format, double value);

/// 16 lower-case digits.
std::string hex_digits(std::uint64_t value);

}  // namespace deltapipe
