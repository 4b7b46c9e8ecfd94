// SPDX-License-Identifier: BSD-3-Clause
// One sample that crosses one boundary again and again: a codec at each end with its own memory.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/codec/codec.hpp"

namespace deltapipe::test {

/// The relative RMS error; 0 without a signal.
inline double relative_error(const CodecStatistics& sums) {
  return sums.signal2 > 0 ? std::sqrt(sums.error2 / sums.signal2) : 0;
}

struct CodecPair {
  CodecPair(const CodecSettings& settings, const CodecShape& shape, MemoryStorage storage)
      : sender(make_codec(settings, shape, storage)),
        receiver(make_codec(settings, shape, storage)),
        sent(label(), shape.tokens, shape.channels),
        received(label(), shape.tokens, shape.channels),
        payload(label(), sender->max_payload_bytes()),
        near(label(), sender->record().bytes(BoundarySide::sender)),
        far(label(), sender->record().bytes(BoundarySide::sender)) {
    visit.sample_ids = {3};
    visit.tokens = {shape.tokens};
    visit.visits = {0};
    Kokkos::deep_copy(near, std::uint8_t{0xff});  // a first visit reads nothing of them
    Kokkos::deep_copy(far, std::uint8_t{0x3c});
  }
  static std::string label() { return "deltapipe::Test::pair"; }

  MemoryRecords records(const DeviceBytes& pool) const {
    if (sender->record().bytes(BoundarySide::sender) == 0) return {};
    return {pool, {0}};
  }

  /// Sends rows of x (host, T*C values); returns what the receiver sees and checks the records.
  std::vector<float> cross(const std::vector<float>& x) {
    auto host = Kokkos::create_mirror_view(sent);
    std::copy(x.begin(), x.end(), host.data());
    Kokkos::deep_copy(sent, host);
    const std::size_t bytes = sender->encode(ExecSpace(), visit, sent, records(near), payload);
    REQUIRE(bytes <= sender->payload_bytes(visit));
    sent_bytes = bytes;
    receiver->decode(ExecSpace(), visit, payload, bytes, records(far), received);
    Kokkos::fence();
    const auto a = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), near);
    const auto b = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), far);
    REQUIRE(std::equal(a.data(), a.data() + sender->record().shared_bytes, b.data()));
    const auto y = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), received);
    ++visit.visits[0];
    ++visit.step;
    return {y.data(), y.data() + y.size()};
  }

  std::unique_ptr<Codec> sender, receiver;
  Activations sent, received;
  DeviceBytes payload, near, far;
  Crossing visit;
  std::size_t sent_bytes = 0;  ///< of the last payload
};

}  // namespace deltapipe::test
