// SPDX-License-Identifier: BSD-3-Clause
// Numbers with units as decks write them: "8 GiB", "100 Mbit/s", "1 ms".
#pragma once

#include <array>
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

/// Base: byte.
inline constexpr std::array kSizeUnits = {
    Unit{"TiB", 0x1p40, 1}, Unit{"TB", 1e12, 1},    Unit{"GiB", 0x1p30, 1},
    Unit{"GB", 1e9, 1},     Unit{"MiB", 0x1p20, 1}, Unit{"MB", 1e6, 1},
    Unit{"KiB", 0x1p10, 1}, Unit{"kB", 1e3, 1},     Unit{"B", 1, 1}};
/// Base: bit/s.
inline constexpr std::array kBandwidthUnits = {Unit{"Tbit/s", 1e12, 1}, Unit{"Gbit/s", 1e9, 1},
                                               Unit{"Mbit/s", 1e6, 1}, Unit{"kbit/s", 1e3, 1},
                                               Unit{"bit/s", 1, 1}};
/// Base: B/s.
inline constexpr std::array kByteRateUnits = {Unit{"TB/s", 1e12, 1}, Unit{"GB/s", 1e9, 1},
                                              Unit{"MB/s", 1e6, 1}, Unit{"kB/s", 1e3, 1},
                                              Unit{"B/s", 1, 1}};
/// Base: flop/s.
inline constexpr std::array kFlopRateUnits = {Unit{"Pflop/s", 1e15, 1}, Unit{"Tflop/s", 1e12, 1},
                                              Unit{"Gflop/s", 1e9, 1}, Unit{"Mflop/s", 1e6, 1},
                                              Unit{"flop/s", 1, 1}};
/// Base: second.
inline constexpr std::array kDurationUnits = {Unit{"s", 1, 1}, Unit{"ms", 1, 1e3},
                                              Unit{"us", 1, 1e6}, Unit{"ns", 1, 1e9}};
/// Base: second; up to days.
inline constexpr std::array kLongDurationUnits = {Unit{"d", 86400, 1}, Unit{"h", 3600, 1},
                                                  Unit{"min", 60, 1}, Unit{"s", 1, 1}};

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
