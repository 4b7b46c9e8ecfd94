// SPDX-License-Identifier: BSD-3-Clause
// State in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/state/state.hpp"

namespace deltapipe {

struct StateContent {
  struct Item {
    StateItem item;
    std::vector<std::byte> bytes;
    bool operator==(const Item&) const = default;
  };
  struct Part {
    std::string name;
    std::vector<Item> items;
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts;
  bool operator==(const StateContent&) const = default;

  std::uint64_t bytes() const;  ///< bytes of all items
};

StateContent state_in_memory(std::span<const StatePart> parts);

}  // namespace deltapipe
