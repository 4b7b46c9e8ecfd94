// SPDX-License-Identifier: BSD-3-Clause
// Wire formats of the parts that replicas exchange in a sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/replicas/settings.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

class PartErrors;

class PartCodec {
 public:
  virtual ~PartCodec() = default;

  /// Returns a number that tells formats apart, for headers.
  virtual std::uint32_t id() const = 0;
  /// Returns the payload of a part of this many elements.
  virtual std::size_t payload_bytes(std::size_t elements) const = 0;
  /// Queues the encoding of a part. `place` is its offset in the memory of the codec's errors, a
  /// multiple of kSumGroup; errors there change. `payload` is aligned to 64 bytes, in memory that
  /// kernels reach.
  virtual void encode(const ExecSpace& exec, const VectorRef<const float>& values,
                      std::size_t place, std::uint8_t* payload) = 0;
  /// Queues the decoding of a part. `adds`: to the values, else in place of them.
  virtual void decode(const ExecSpace& exec, const std::uint8_t* payload,
                      const VectorRef<float>& values, bool adds) const = 0;

  /// Returns the codec's memory of errors, all that it retains from sum to sum; null if it has
  /// none.
  virtual PartErrors* errors() { return nullptr; }
};

/// Returns the codec of `elements` values: the places of all parts are below it.
std::unique_ptr<PartCodec> make_part_codec(const ReplicaSettings& settings, std::size_t elements);
/// Returns the memory that it retains.
MemoryLedger part_codec_memory(const ReplicaSettings& settings, std::size_t elements);
/// Returns payload_bytes() of that codec.
std::size_t part_payload_bytes(const ReplicaSettings& settings, std::size_t elements);

}  // namespace deltapipe
