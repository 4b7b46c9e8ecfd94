// SPDX-License-Identifier: BSD-3-Clause
// Records that the ends of a boundary keep of each sample from one crossing to the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/parallel/views.hpp"

namespace deltapipe {

enum class BoundarySide { sender, receiver };

/// One sample's record at each end: the part that both ends keep, with the same bits, followed by
/// the part that only the sender needs.
struct RecordLayout {
  std::size_t shared_bytes = 0;
  std::size_t sender_bytes = 0;  ///< after the shared part, at the sender only

  /// Returns the bytes of the whole record at an end, a multiple of kRecordAlignment; 0 if that end
  /// keeps no record.
  std::size_t bytes(BoundarySide side) const {
    return shared_bytes + (side == BoundarySide::sender ? sender_bytes : 0);
  }
  bool operator==(const RecordLayout&) const = default;
};

/// Records of a crossing's samples at one end. The record of the b-th sample begins at
/// pool(offset_B[b]). Offsets are multiples of kRecordAlignment, and records do not overlap. A
/// first visit does not read them.
struct MemoryRecords {
  DeviceBytes pool;
  std::vector<std::uint64_t> offset_B;
};

inline constexpr std::size_t kRecordAlignment = 64;

}  // namespace deltapipe
