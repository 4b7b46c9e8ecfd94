// SPDX-License-Identifier: BSD-3-Clause
// Computes the checksum of a payload in device memory, without a copy to the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// For every payload: call queue() after the work that writes it, fence the same instance, then
/// call value().
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
