// SPDX-License-Identifier: BSD-3-Clause
// Numbers as text for people, and text as numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace deltapipe {

/// Formats `value` with a printf format for one double. NaN is always "nan": printf would show its
/// sign, which depends on the processor.
std::string number_text(const char* format, double value);

/// Returns the whole number that a text consists of, "-12" for example; nothing for another text.
std::optional<std::int64_t> whole_number(std::string_view text);

/// Returns 16 lower-case digits.
std::string hex_digits(std::uint64_t value);

}  // namespace deltapipe
