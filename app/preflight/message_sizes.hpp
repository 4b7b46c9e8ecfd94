// SPDX-License-Identifier: BSD-3-Clause
// Bytes of messages, before they are sent.
#pragma once

#include <cstdint>

#include "comm/boundary/boundary.hpp"
#include "core/codec/crossing.hpp"

namespace deltapipe {

/// Messages of one kind, all replicas together.
struct WireBytes {
  std::uint64_t payload = 0;  ///< hashes of memories included
  std::uint64_t headers = 0;
  std::uint64_t fp32 = 0;  ///< what the same values need without a codec, headers included
  std::uint64_t messages = 0;

  std::uint64_t all() const { return payload + headers; }
  WireBytes& operator+=(const WireBytes& other);
};

/// True: the length of a payload depends on shapes alone.
bool has_fixed_length(const CodecSettings& codec);

/// One direction of boundaries of one shape, or of the exchange of token rows.
class MessageSizes {
 public:
  explicit MessageSizes(const BoundaryEndPlan& plan)
      : codecs_(plan),
        channels_(static_cast<std::uint64_t>(plan.codec.shape.channels)),
        verify_every_(plan.memory.verify_every),
        shared_bytes_(codecs_.record().shared_bytes) {}

  WireBytes of(const Crossing& crossing) const {
    WireBytes bytes;
    bytes.messages = 1;
    bytes.headers = sizeof(MessageHeader);
    bytes.payload = codecs_.of(crossing).payload_bytes(crossing) + hashes(crossing);
    bytes.fp32 = bytes.headers;
    for (const int tokens : crossing.tokens)
      bytes.fp32 += sizeof(float) * channels_ * static_cast<std::uint64_t>(tokens);
    return bytes;
  }
  bool remembers() const { return codecs_.training() && !(codecs_.record() == RecordLayout{}); }

 private:
  /// As MemoryCheck chooses samples.
  std::uint64_t hashes(const Crossing& crossing) const {
    if (!crossing.training || verify_every_ == 0 || shared_bytes_ == 0) return 0;
    std::uint64_t chosen = 0;
    for (std::size_t b = 0; b < crossing.samples(); ++b)
      if ((crossing.sample_ids[b] + crossing.visits[b]) % verify_every_ == 0) ++chosen;
    return sizeof(std::uint64_t) * chosen;
  }

  BoundaryCodecs codecs_;
  std::uint64_t channels_;
  std::uint64_t verify_every_;
  std::size_t shared_bytes_;
};

}  // namespace deltapipe
