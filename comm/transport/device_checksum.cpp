// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/device_checksum.hpp"

#include "core/kernels/content_hash.hpp"

namespace deltapipe {

DeviceChecksum::DeviceChecksum()
    : hash_("deltapipe::DeviceChecksum::hash", 1),
      host_(Kokkos::create_mirror_view(StagingSpace(), hash_)) {}

void DeviceChecksum::queue(const ExecSpace& exec, const DeviceBytes& payload,
                           std::size_t bytes) const {
  hash_bytes(exec, payload.data(), bytes, hash_);
  Kokkos::deep_copy(exec, host_, hash_);
}

}  // namespace deltapipe
