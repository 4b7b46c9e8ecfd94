// SPDX-License-Identifier: BSD-3-Clause
// Names of boundaries and their ends: in messages, in the parts of a rank's state, of spill files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/codec/wire/records.hpp"

namespace deltapipe {

/// Prefix of the names of state parts that hold a StepController.
inline constexpr std::string_view kTargetPart = "target of ";
/// Name of the exchange of token rows between the last stage and the first.
inline constexpr std::string_view kTokenRows = "token rows";

/// An end whose memories of samples are a part of a rank's state.
struct EndName {
  /// Boundary after this stage; nullopt: the exchange of token rows.
  std::optional<int> boundary;
  bool backward = false;
  BoundarySide side = BoundarySide::sender;

  /// Returns the name of both ends: "boundary 2 forward".
  std::string link() const;
  /// Returns the name of the part of the state: "boundary 2 forward sender".
  std::string part() const;
  /// Returns the end that part() names; nothing for other parts.
  static std::optional<EndName> of_part(std::string_view part);
};

/// Returns a part's name for an end of what link() names.
std::string end_part(std::string_view link, BoundarySide side);

/// Returns the name of the file, in the directory of spill files.
std::string spill_file_name(int replica, int boundary, bool backward, BoundarySide side);
bool is_spill_file_name(const std::string& name);

}  // namespace deltapipe
