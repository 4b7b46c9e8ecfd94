// SPDX-License-Identifier: BSD-3-Clause
// Payloads of codecs that pack values without coding them by entropy: whole values, bits, changes,
// rows that are not zero. An input's first bytes choose codec and samples; then either the rest is
// a payload, or it changes one that an encoder wrote. What a codec refuses changes nothing.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "codec_support.hpp"
#include "core/codec/codec.hpp"
#include "support.hpp"

using namespace deltapipe;

namespace {

constexpr float kUntouched = 77;
constexpr unsigned kKinds = 7;
constexpr unsigned kFeedback = 5;  ///< of them
constexpr unsigned kChoices = kKinds * 8;

CodecSettings settings_of(unsigned choice) {
  const unsigned detail = choice / kKinds;
  CodecSettings settings;
  settings.bits = 2 + static_cast<int>(detail % 7);
  settings.scale = detail % 3 == 0 ? ScaleKind::channel : ScaleKind::tile;
  settings.tile = detail % 3 == 1 ? kWholeRow : 10;
  settings.levels = detail % 4 == 3 ? Levels::asymmetric : Levels::symmetric;
  settings.first_visit = detail % 2 == 0 ? FirstVisit::fp32 : FirstVisit::quantize8;
  switch (choice % kKinds) {
    case 0:
      settings.kind = CodecKind::none;
      break;
    case 1:
      settings.kind = CodecKind::fp16;
      break;
    case 2:
      settings.kind = CodecKind::bf16;
      break;
    case 3:
    case 4:
      settings.kind = CodecKind::directq;
      break;
    case kFeedback:
      settings.kind = CodecKind::directq;
      settings.error_feedback = true;
      settings.feedback_kind = detail % 2 == 0 ? FeedbackKind::ef21 : FeedbackKind::ef;
      break;
    default:
      settings.kind = CodecKind::aqsgd;
      break;
  }
  return settings;
}

/// A receiver and what a sender writes for it.
struct End {
  explicit End(unsigned choice)
      : name(choice % kKinds == kFeedback
                 ? "feedback"
                 : kCodecKindNames[static_cast<std::size_t>(settings_of(choice).kind)]),
        codec(make_codec(settings_of(choice), shape, storage_of(choice))),
        record_bytes(codec->record().bytes(BoundarySide::sender)),
        pool("deltapipe::Fuzz::pool", 3 * record_bytes),
        x("deltapipe::Fuzz::x", shape.max_samples * shape.tokens, shape.channels),
        longest("deltapipe::Fuzz::payload", codec->max_payload_bytes()) {}

  static MemoryStorage storage_of(unsigned choice) {
    return static_cast<MemoryStorage>(choice / kKinds % 6);
  }
  MemoryRecords records() const {
    if (record_bytes == 0) return {};
    return {pool, {0, record_bytes, 2 * record_bytes}};
  }
  void clear() const {
    if (pool.size() > 0) std::memset(pool.data(), 0, pool.size());
    std::fill_n(x.data(), x.size(), kUntouched);
  }

  const std::vector<std::uint8_t>& encoded(const Crossing& crossing, unsigned samples) {
    std::vector<std::uint8_t>& bytes = written[samples];
    if (!bytes.empty()) return bytes;
    clear();
    std::uint32_t state = samples;
    for (std::size_t i = 0; i < x.size(); ++i) {
      state = state * 1664525u + 1013904223u;
      x.data()[i] = static_cast<float>(state >> 8) * 0x1p-23f - 1;
      if (i / shape.channels % 3 == 1) x.data()[i] = 0;  // a row of zeros
    }
    const std::size_t size = codec->encode(ExecSpace(), crossing, x, records(), longest);
    bytes.assign(longest.data(), longest.data() + size);
    return bytes;
  }

  CodecShape shape{3, 5, 23};
  const char* name;
  std::unique_ptr<Codec> codec;
  std::size_t record_bytes;
  DeviceBytes pool;
  Activations x;
  DeviceBytes longest;
  std::map<unsigned, std::vector<std::uint8_t>> written;
};

End& end_of(unsigned choice) {
  static const Kokkos::ScopeGuard kokkos;
  static std::map<unsigned, std::unique_ptr<End>> ends;
  std::unique_ptr<End>& end = ends[choice];
  if (!end) end = std::make_unique<End>(choice);
  return *end;
}

/// First, second and later visits, some samples padded, some without any token.
Crossing crossing_of(const CodecShape& shape, unsigned samples) {
  Crossing crossing;
  for (unsigned b = 0; b < 3; ++b) {
    crossing.sample_ids.push_back(b);
    crossing.tokens.push_back(std::array{shape.tokens, 2, 0, shape.tokens}[(samples >> b) % 4]);
    crossing.visits.push_back((samples >> (b + 3)) % 3);
  }
  return crossing;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return fuzz::mutate_with_choice(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  End& end = end_of(data[0] % kChoices);
  fuzz::count(end.name);
  const unsigned samples = data[1] % 64;
  const Crossing crossing = crossing_of(end.shape, samples);
  std::vector<std::uint8_t> bytes(data + 3, data + size);
  if (data[2] % 4 != 0) {
    bytes = end.encoded(crossing, samples);
    fuzz::alter(bytes, data + 3, size - 3);
    if (data[2] % 4 == 3) fuzz::cut(bytes, size % 64);
  }
  end.clear();
  const fuzz::ExactPayload payload(bytes);
  const bool taken = fuzz::takes([&] {
    end.codec->decode(ExecSpace(), crossing, payload.view(), payload.size(), end.records(), end.x);
  });
  if (taken) return 0;
  for (std::size_t i = 0; i < end.x.size(); ++i) fuzz::expect(end.x.data()[i] == kUntouched);
  for (std::size_t i = 0; i < end.pool.size(); ++i) fuzz::expect(end.pool.data()[i] == 0);
  return 0;
}
