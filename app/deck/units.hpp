// SPDX-License-Identifier: BSD-3-Clause
// Numbers with units as decks write them: "8 GiB", "100 Mbit/s", "1 ms".
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace deltapipe::deck {

/// One unit is multiplier / divisor of the base unit; one of the two is 1, so that values in it
/// convert with one correctly rounded operation.
struct Unit {
  const char* name;
  double multiplier;
  double divisor;
};

std::span<const Unit> size_units();           ///< base: byte
std::span<const Unit> bandwidth_units();      ///< base: bit/s
std::span<const Unit> byte_rate_units();      ///< base: B/s
std::span<const Unit> flop_rate_units();      ///< base: flop/s
std::span<const Unit> duration_units();       ///< base: second
std::span<const Unit> long_duration_units();  ///< base: second; up to days

/// The shortest text that reads back to the same finite double.
std::string format_number(double value);
/// The same in TOML, where a number without a point or an exponent is an integer.
std::string format_real(double value);

/// "NUMBER UNIT" with or without the space, in base units; a number alone is in base units. Empty
/// for anything else, negative and non-finite values included.
std::optional<double> parse_quantity(std::string_view text, std::span<const Unit> units);

/// The value in the largest unit that keeps it exact and at least 1, else as a plain number.
std::string format_quantity(double value, std::span<const Unit> units);

/// "B, KiB, MiB, ..."
std::string unit_names(std::span<const Unit> units);

}  // namespace deltapipe::deck
