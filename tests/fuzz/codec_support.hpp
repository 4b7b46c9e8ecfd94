// SPDX-License-Identifier: BSD-3-Clause
// Payloads for the targets of codecs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/parallel/views.hpp"

namespace deltapipe::fuzz {

/// `changes`: threes of a place, two bytes, and what to change there.
inline void alter(std::vector<std::uint8_t>& bytes, const std::uint8_t* changes, std::size_t size) {
  for (std::size_t i = 0; i + 3 <= size && !bytes.empty(); i += 3)
    bytes[(changes[i] * std::size_t{256} + changes[i + 1]) % bytes.size()] ^= changes[i + 2];
}

/// Cuts off at most `count` bytes.
inline void cut(std::vector<std::uint8_t>& bytes, std::size_t count) {
  bytes.resize(bytes.size() - std::min(bytes.size(), count));
}

/// Aligned like a message, of just the bytes' size, so that reading beyond it is seen.
class ExactPayload {
 public:
  explicit ExactPayload(const std::vector<std::uint8_t>& bytes)
      : words_(new std::uint32_t[(bytes.size() + 3) / 4]), size_(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::uint8_t*>(words_.get()));
  }
  DeviceBytes view() const {
    return DeviceBytes(reinterpret_cast<std::uint8_t*>(words_.get()), size_);
  }
  std::size_t size() const { return size_; }

 private:
  std::unique_ptr<std::uint32_t[]> words_;
  std::size_t size_;
};

}  // namespace deltapipe::fuzz
