// SPDX-License-Identifier: BSD-3-Clause
#include "comm/boundary/end_name.hpp"

#include <fmt/format.h>

#include <charconv>
#include <regex>
#include <system_error>

namespace deltapipe {

namespace {

constexpr std::string_view kBoundary = "boundary ";

const char* name_of(BoundarySide side) {
  return side == BoundarySide::sender ? "sender" : "receiver";
}

}  // namespace

std::string EndName::link() const {
  if (!boundary) return std::string(kTokenRows);
  return fmt::format("{}{} {}", kBoundary, *boundary, backward ? "backward" : "forward");
}

std::string EndName::part() const {
  return end_part(link(), side);
}

std::optional<EndName> EndName::of_part(std::string_view part) {
  EndName end;
  if (part.starts_with(kBoundary)) {
    int number = 0;
    const std::string_view text = part.substr(kBoundary.size());
    if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc())
      return std::nullopt;
    end.boundary = number;
  }
  for (const bool backward : {false, true})
    for (const BoundarySide side : {BoundarySide::sender, BoundarySide::receiver}) {
      end.backward = backward;
      end.side = side;
      if (end.part() == part) return end;
    }
  return std::nullopt;
}

std::string end_part(std::string_view link, BoundarySide side) {
  return fmt::format("{} {}", link, name_of(side));
}

std::string spill_file_name(int replica, int boundary, bool backward, BoundarySide side) {
  return fmt::format("cache-replica{}-boundary{}-{}-{}.h5", replica, boundary,
                     backward ? "backward" : "forward", name_of(side));
}

bool is_spill_file_name(const std::string& name) {
  static const std::regex pattern(
      R"(cache-replica\d+-boundary\d+-(forward|backward)-(sender|receiver)\.h5)");
  return std::regex_match(name, pattern);
}

}  // namespace deltapipe
