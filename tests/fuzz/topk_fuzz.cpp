// SPDX-License-Identifier: BSD-3-Clause
// Payloads of codec topk: the input itself, or a correct payload with some bytes changed. The
// first byte chooses settings, the second one how the others are used.
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <random>

#include "codec_support.hpp"
#include "core/codec/codec.hpp"
#include "support.hpp"

using namespace deltapipe;

namespace {

constexpr float kUntouched = 77;
constexpr unsigned kChoices = 72;

/// A receiver, and a payload that it takes.
struct End {
  explicit End(unsigned choice)
      : name(name_of(settings_of(choice))),
        shape(shape_of(choice)),
        codec(make_codec(settings_of(choice), shape, MemoryStorage::fp32)),
        pool("deltapipe::Fuzz::pool", 3 * codec->record().bytes(BoundarySide::sender)),
        x("deltapipe::Fuzz::x", shape.max_samples * shape.tokens, shape.channels),
        payload("deltapipe::Fuzz::payload", codec->max_payload_bytes()) {
    crossing.sample_ids = {0, 1, 2};
    crossing.tokens = {shape.tokens, 0, 7};
    // The third sample is at its first visit where that differs from later ones.
    crossing.visits = {3, 3, has_memory(settings_of(choice)) ? 0u : 3u};
    std::mt19937 random(choice);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = normal(random);
    const std::size_t bytes =
        codec->encode(ExecSpace(), crossing, x, records(BoundarySide::sender), payload);
    right.assign(payload.data(), payload.data() + bytes);
    kept.assign(pool.data(), pool.data() + pool.size());
  }

  /// The second one's chosen values take several rows.
  static CodecShape shape_of(unsigned choice) {
    return choice < kChoices / 2 ? CodecShape{3, 12, 25} : CodecShape{3, 40, 55};
  }

  static CodecSettings settings_of(unsigned choice) {
    CodecSettings settings;
    choice %= kChoices / 2;
    settings.kind = choice / 12 % 3 == 1 ? CodecKind::aqsgd_topk : CodecKind::topk;
    settings.error_feedback = choice / 12 % 3 == 2;
    settings.feedback_kind = FeedbackKind::ef21;
    settings.values = static_cast<ChosenValues>(choice % 3);
    settings.topk = std::array{1.0, 0.4, 0.1, 0.004}[choice / 3 % 4];
    settings.bits = 3;
    settings.tile = 24;
    return settings;
  }
  MemoryRecords records(BoundarySide side) const {
    const std::size_t bytes = codec->record().bytes(side);
    if (bytes == 0) return {};
    return {pool, {0, bytes, 2 * bytes}};
  }
  bool remembers() const { return codec->record().shared_bytes > 0; }

  static const char* name_of(const CodecSettings& settings) {
    if (settings.error_feedback) return "topk ef21";
    return settings.kind == CodecKind::topk ? "topk" : "aqsgd_topk";
  }

  const char* name;
  CodecShape shape;
  std::unique_ptr<Codec> codec;
  DeviceBytes pool;
  Activations x;
  DeviceBytes payload;
  Crossing crossing;
  std::vector<std::uint8_t> right;
  std::vector<std::uint8_t> kept;  ///< records before a payload comes
};

End& end_of(unsigned choice) {
  static const Kokkos::ScopeGuard kokkos;
  static std::map<unsigned, std::unique_ptr<End>> ends;
  std::unique_ptr<End>& end = ends[choice];
  if (!end) end = std::make_unique<End>(choice);
  return *end;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return fuzz::mutate_with_choice(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  End& end = end_of(data[0] % kChoices);
  fuzz::count(end.name);
  std::vector<std::uint8_t> bytes(data + 2, data + size);
  if (data[1] % 4 != 0) {
    bytes = end.right;
    fuzz::alter(bytes, data + 2, size - 2);
    if (data[1] % 4 == 3) fuzz::cut(bytes, size % 64);
  }
  const fuzz::ExactPayload payload(bytes);
  std::fill_n(end.x.data(), end.x.size(), kUntouched);
  const bool taken = fuzz::takes([&] {
    end.codec->decode(ExecSpace(), end.crossing, payload.view(), payload.size(),
                      end.records(BoundarySide::receiver), end.x);
  });
  for (std::size_t i = 0; i < end.x.size(); ++i) {
    const float value = end.x.data()[i];
    if (!taken) fuzz::expect(value == kUntouched);
    if (taken && end.remembers()) fuzz::expect(std::isfinite(value));
  }
  if (!taken) {
    fuzz::expect(std::equal(end.kept.begin(), end.kept.end(), end.pool.data()));
  } else if (end.remembers()) {
    const auto* memories = reinterpret_cast<const float*>(end.pool.data());
    for (std::size_t i = 0; i < end.pool.size() / sizeof(float); ++i)
      fuzz::expect(std::isfinite(memories[i]));
    std::copy(end.kept.begin(), end.kept.end(), end.pool.data());
  }
  return 0;
}
