// SPDX-License-Identifier: BSD-3-Clause
// The checksum of a payload that MPI finds in device memory, made where it is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// For every payload: queue() behind what writes it, a fence of the same instance, value().
class DeviceChecksum {
 public:
  DeviceChecksum();

  /// Queues the checksum of the first `bytes` bytes.
  void queue(const ExecSpace& exec, const DeviceBytes& payload, std::size_t bytes) const;
  std::uint64_t value() const { return host_(0); }

 private:
  Vector<std::uint64_t> hash_;
  HostVector<std::uint64_t> host_;
};

}  // namespace deltapipe
