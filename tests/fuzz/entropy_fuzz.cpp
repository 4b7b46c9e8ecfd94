// SPDX-License-Identifier: BSD-3-Clause
// Payloads with entropy-coded values. An input's first bytes choose settings and shape; then either
// the rest is a payload, or it changes one that an encoder wrote. What a codec refuses changes
// nothing.
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "codec_support.hpp"
#include "core/codec/codec.hpp"
#include "core/codec/settings_check.hpp"
#include "support.hpp"

using namespace deltapipe;

namespace {

constexpr int kSettings = 16;
constexpr std::uint8_t kUntouched = 0x5a;

CodecSettings settings_of(int i) {
  CodecSettings settings;
  settings.kind = i % 2 == 0 ? CodecKind::directq : CodecKind::aqsgd;
  settings.bits = 2 + i / 2 % 7;
  settings.tile = i % 3 == 0 ? kWholeRow : 16;
  settings.rms_step = i % 5 == 4 ? 0.2 : 0.0;
  if (settings.rms_step > 0 && i % 2 == 0) settings.scale = ScaleKind::message;
  settings.first_visit = i % 4 == 1 ? FirstVisit::fp32 : FirstVisit::quantize8;
  settings.entropy_coding = true;
  if (i == 13) {
    settings.rms_step = 0.2;
    settings.scale = ScaleKind::message;
  }
  return settings;
}

/// Micro-batches of first, second and later visits, some of them padded.
Crossing crossing_of(const CodecShape& shape, std::uint8_t choice) {
  Crossing crossing;
  for (int b = 0; b < shape.max_samples; ++b) {
    crossing.sample_ids.push_back(b);
    crossing.tokens.push_back((choice >> b) % 2 == 0 ? shape.tokens : shape.tokens / 2);
    crossing.visits.push_back((choice >> (b + 3)) % 3);
  }
  return crossing;
}

struct Ends {
  explicit Ends(int i)
      // The wide ones have several streams, four of them of equally many rows where all samples
      // have all tokens.
      : shape{3, is_wide(i) ? 9 : 3,
              is_wide(i)   ? 640
              : i % 4 == 2 ? 77
                           : 64},
        codec(make_codec(settings_of(i), shape, MemoryStorage::fp16)),
        x("deltapipe::Fuzz::x", shape.max_samples * shape.tokens, shape.channels),
        pool("deltapipe::Fuzz::pool", 3 * codec->record().bytes(BoundarySide::sender)),
        longest("deltapipe::Fuzz::payload", codec->max_payload_bytes()) {}

  static bool is_wide(int i) { return i % 8 == 3 || i % 8 == 4; }

  MemoryRecords records() const {
    const std::size_t bytes = codec->record().bytes(BoundarySide::sender);
    return {pool, {0, bytes, 2 * bytes}};
  }
  void clear() const {
    std::memset(pool.data(), 0, pool.size());
    std::memset(x.data(), kUntouched, x.size() * sizeof(float));
  }

  CodecShape shape;
  std::unique_ptr<Codec> codec;
  Activations x;
  DeviceBytes pool, longest;
};

/// The stream that an encoder writes for values that look like activations, a few of them large.
/// Written once for the same arguments.
const std::vector<std::uint8_t>& encoded(Ends& ends, int settings, const Crossing& crossing,
                                         std::uint8_t choice, std::uint8_t seed) {
  static std::map<std::array<int, 3>, std::vector<std::uint8_t>> written;
  std::vector<std::uint8_t>& bytes = written[{settings, choice, seed}];
  if (!bytes.empty()) return bytes;
  std::uint32_t state = seed;
  for (std::size_t i = 0; i < ends.x.size(); ++i) {
    float sum = 0;
    for (int k = 0; k < 4; ++k) {
      state = state * 1664525u + 1013904223u;
      sum += static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    }
    ends.x.data()[i] = state % 97 == 0 ? 10 * sum : sum;
  }
  std::memset(ends.pool.data(), 0, ends.pool.size());
  const std::size_t size =
      ends.codec->encode(ExecSpace(), crossing, ends.x, ends.records(), ends.longest);
  bytes.assign(ends.longest.data(), ends.longest.data() + size);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  Kokkos::initialize(*argc, *argv);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return fuzz::mutate_with_choice(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  static std::unique_ptr<Ends> all[kSettings];
  const int i = data[0] % kSettings;
  if (!all[i]) all[i] = std::make_unique<Ends>(i);
  Ends& ends = *all[i];
  fuzz::count(i % 2 == 0 ? "directq" : "aqsgd");
  const Crossing crossing = crossing_of(ends.shape, data[1]);
  const bool is_payload = data[2] % 2 == 0;
  std::vector<std::uint8_t> bytes;
  if (is_payload) {
    bytes.assign(data + 4, data + size);
  } else {
    bytes = encoded(ends, i, crossing, data[1], data[3] % 4);
    // Place in two bytes, from the front or from the back, and the new byte.
    for (std::size_t at = 4; at + 3 <= size && !bytes.empty(); at += 3) {
      const std::size_t place = data[at] | static_cast<std::size_t>(data[at + 1] & 0x7f) << 8;
      const bool back = (data[at + 1] & 0x80) != 0;
      if (back && place % 8 == 7) {
        fuzz::cut(bytes, place / 8);
      } else if (!bytes.empty()) {
        const std::size_t index = place % bytes.size();
        bytes[back ? bytes.size() - 1 - index : index] ^= data[at + 2];
      }
    }
  }
  ends.clear();
  const fuzz::ExactPayload payload(bytes);
  const bool taken = fuzz::takes([&] {
    ends.codec->decode(ExecSpace(), crossing, payload.view(), payload.size(), ends.records(),
                       ends.x);
  });
  if (taken) return 0;
  const auto* seen = reinterpret_cast<const std::uint8_t*>(ends.x.data());
  for (std::size_t k = 0; k < ends.x.size() * sizeof(float); ++k)
    fuzz::expect(seen[k] == kUntouched);
  for (std::size_t k = 0; k < ends.pool.size(); ++k) fuzz::expect(ends.pool.data()[k] == 0);
  return 0;
}
