// SPDX-License-Identifier: BSD-3-Clause
// Both ends of a boundary in one process, with records of some samples at each end as it requests
// them.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/codec/codec.hpp"

namespace deltapipe::test {

struct CodecLink {
  CodecLink(const CodecSettings& settings, const CodecShape& extents, MemoryStorage storage,
            int samples = 1)
      : CodecLink(make_codec(settings, end_of(extents, BoundarySide::sender), storage),
                  make_codec(settings, end_of(extents, BoundarySide::receiver), storage), extents,
                  samples) {}
  CodecLink(std::unique_ptr<Codec> sender_end, std::unique_ptr<Codec> receiver_end,
            const CodecShape& extents, int samples = 1)
      : shape(extents),
        sender(std::move(sender_end)),
        receiver(std::move(receiver_end)),
        near(label(), sender->record().bytes(BoundarySide::sender) * samples),
        far(label(), sender->record().bytes(BoundarySide::receiver) * samples),
        sent(label(), extents.max_samples * extents.tokens, extents.channels),
        received(label(), extents.max_samples * extents.tokens, extents.channels),
        payload(label(), sender->max_payload_bytes()) {
    Kokkos::deep_copy(near, std::uint8_t{0xff});  // a first visit reads nothing of them
    Kokkos::deep_copy(far, std::uint8_t{0x3c});
  }
  static std::string label() { return "deltapipe::Test::link"; }
  static CodecShape end_of(CodecShape shape, BoundarySide side) {
    shape.side = side;
    return shape;
  }

  MemoryRecords records(const DeviceBytes& pool, BoundarySide side) const {
    const std::size_t bytes = sender->record().bytes(side);
    if (bytes == 0) return {};
    MemoryRecords records{pool, {}};
    for (const std::uint64_t id : crossing.sample_ids) records.offset_B.push_back(id * bytes);
    return records;
  }

  /// Describes the next crossing.
  void prepare(const std::vector<std::uint64_t>& ids, const std::vector<int>& tokens) {
    crossing.sample_ids = ids;
    crossing.tokens = tokens;
    crossing.visits.clear();
    for (const std::uint64_t id : ids) crossing.visits.push_back(visits[id]++);
  }

  /// The payload of rows x of the prepared crossing.
  std::vector<std::uint8_t> encode(const std::vector<float>& x) {
    const auto host = Kokkos::create_mirror_view(sent);
    Kokkos::deep_copy(host, std::nanf(""));
    std::copy(x.begin(), x.end(), host.data());
    Kokkos::deep_copy(sent, host);
    Kokkos::deep_copy(payload, std::uint8_t{0xa5});
    const std::size_t bytes =
        sender->encode(ExecSpace(), crossing, sent, records(near, BoundarySide::sender), payload);
    REQUIRE(bytes <= sender->payload_bytes(crossing));
    if (!sender->waits()) REQUIRE(bytes == sender->payload_bytes(crossing));
    REQUIRE(sender->payload_bytes(crossing) <= sender->max_payload_bytes());
    Kokkos::fence();
    const auto all = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), payload);
    REQUIRE(std::count(all.data() + bytes, all.data() + all.size(), 0xa5) ==
            static_cast<std::ptrdiff_t>(all.size() - bytes));
    return {all.data(), all.data() + bytes};
  }

  /// Decodes a payload as the receiver does. A receiver without records knows no visits.
  std::vector<float> decode(const std::vector<std::uint8_t>& bytes) {
    const auto host = Kokkos::create_mirror_view(payload);
    std::copy_n(bytes.begin(), std::min(bytes.size(), host.size()), host.data());
    Kokkos::deep_copy(payload, host);
    Crossing there = crossing;
    if (sender->record().bytes(BoundarySide::receiver) == 0)
      there.visits.assign(there.samples(), 0);
    receiver->decode(ExecSpace(), there, payload, bytes.size(),
                     records(far, BoundarySide::receiver), received);
    Kokkos::fence();
    return seen();
  }
  std::vector<float> seen() const {
    const auto y = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), received);
    return {y.data(), y.data() + y.size()};
  }

  /// A whole crossing; what both ends keep has to be the same afterwards.
  std::vector<float> cross(const std::vector<std::uint64_t>& ids, const std::vector<int>& tokens,
                           const std::vector<float>& x) {
    prepare(ids, tokens);
    sent_bytes = encode(x);
    const std::vector<float> y = decode(sent_bytes);
    const RecordLayout layout = sender->record();
    for (const std::uint64_t id : ids) {
      const auto a = record(near, id, BoundarySide::sender);
      const auto b = record(far, id, BoundarySide::receiver);
      REQUIRE(std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(layout.shared_bytes),
                         b.begin()));
    }
    ++crossing.step;
    return y;
  }

  std::vector<std::uint8_t> record(const DeviceBytes& pool, std::uint64_t id,
                                   BoundarySide side) const {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), pool);
    const std::size_t bytes = sender->record().bytes(side);
    return {host.data() + id * bytes, host.data() + (id + 1) * bytes};
  }
  /// The sender's record of a sample, stored as fp32.
  std::vector<float> floats(std::uint64_t id) const {
    const auto bytes = record(near, id, BoundarySide::sender);
    std::vector<float> values(static_cast<std::size_t>(shape.tokens) * shape.channels);
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    return values;
  }

  CodecShape shape;
  std::unique_ptr<Codec> sender, receiver;
  DeviceBytes near, far;
  Activations sent, received;
  DeviceBytes payload;
  Crossing crossing;
  std::vector<std::uint8_t> sent_bytes;
  std::map<std::uint64_t, std::uint32_t> visits;
};

/// NaN, infinities and the largest numbers, again and again: what is seen and kept stays finite,
/// and all that was not is counted. The link has one token of 40 channels.
inline void check_hostile_values(CodecLink& link, MemoryStorage storage) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x(40, 1.0f);
  x[1] = inf;
  x[2] = -inf;
  x[3] = std::nanf("");
  x[4] = 3.4e38f;
  x[39] = -3.4e38f;
  for (int visit = 0; visit < 5; ++visit) {
    for (const float value : link.cross({0}, {1}, x)) REQUIRE(std::isfinite(value));
    if (storage != MemoryStorage::fp32) continue;
    for (const float value : link.floats(0)) REQUIRE(std::isfinite(value));
  }
  CHECK(link.sender->take_statistics(ExecSpace()).nonfinite == 15);
}

}  // namespace deltapipe::test
