// SPDX-License-Identifier: BSD-3-Clause
// Both ends of a boundary must keep the same bits of their shared memories. Hashes of what they
// store after a visit follow the payload of some messages (design section 4).
#pragma once

#include <cstdint>
#include <vector>

#include "comm/transport/message.hpp"
#include "core/base/parallel/views.hpp"
#include "core/codec/crossing.hpp"
#include "core/codec/wire/records.hpp"

namespace deltapipe {

/// One end's part. For every crossing: call choose(), then hash() after the codec's kernels are
/// queued on the same space, then a fence, and append() or compare(). For payloads in device
/// memory, append the hashes before the fence, on the same space.
class MemoryCheck {
 public:
  /// every: visits of a sample between comparisons, spread evenly over samples; 0: no comparisons.
  /// shared_bytes: the first bytes of a record, RecordLayout::shared_bytes.
  MemoryCheck(std::uint64_t every, int max_samples, std::size_t shared_bytes);

  /// Returns the most bytes that can follow a payload.
  static std::size_t max_bytes(std::uint64_t every, int max_samples, std::size_t shared_bytes) {
    return every > 0 && shared_bytes > 0 ? sizeof(std::uint64_t) * max_samples : 0;
  }
  std::size_t max_bytes() const { return sizeof(std::uint64_t) * hash_B_.extent(0); }

  /// Chooses the samples of a crossing to compare, the same ones at both ends.
  void choose(const Crossing& crossing, const MemoryRecords& records);
  /// Chooses no samples, for a crossing without memories.
  void choose_none() { chosen_.clear(); }
  /// Returns the number of bytes that follow this crossing's payload.
  std::size_t bytes() const { return sizeof(std::uint64_t) * chosen_.size(); }

  /// Hashes the chosen samples' records on the device. If the crossing does not count, their hashes
  /// are zeros, which neither end compares.
  void hash(const ExecSpace& exec, const MemoryRecords& records, bool counts);
  void append(std::uint8_t* behind_payload) const;
  void append_on_device(const ExecSpace& exec, std::uint8_t* behind_payload) const;
  /// Throws UserError that names the first sample that differs, its visit, boundary and both ranks.
  void compare(const std::uint8_t* behind_payload, const Crossing& crossing,
               const MessageHeader& header) const;

 private:
  std::uint64_t every_;
  std::size_t shared_bytes_;
  std::vector<std::size_t> chosen_;  ///< indices into the crossing's samples
  Vector<std::uint64_t> offset_B_, hash_B_;
  MirrorVector<std::uint64_t> offset_host_, hash_host_;
};

}  // namespace deltapipe
