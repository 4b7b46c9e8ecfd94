// SPDX-License-Identifier: BSD-3-Clause
// Two ends of a boundary for tests of codecs: micro-batches whose samples come and go over some
// steps, and what each end makes of them.
#pragma once

#include <xxhash.h>

#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "core/codec/codec.hpp"
#include "core/codec/settings_check.hpp"

namespace deltapipe::test {

inline constexpr CodecShape kEndsShape{3, 4, 77};
inline constexpr int kEndsSamples = 5;
inline constexpr int kEndsSteps = 6;

struct EndsCase {
  CodecSettings settings;
  MemoryStorage storage;
  double scale = 1;  ///< Crossing::scale of the first step; another one at each
  CodecShape shape = kEndsShape;
  int steps = kEndsSteps;
};

/// Entropy coding with every rule for scales.
inline std::vector<EndsCase> coded_ends_cases() {
  std::vector<EndsCase> cases;
  for (const auto storage : {MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bits4})
    for (const double rms_step : {0.0, 0.3})
      for (const auto scale : {ScaleKind::channel, ScaleKind::tile})
        for (const auto rounding : {Rounding::nearest, Rounding::stochastic}) {
          CodecSettings settings;
          settings.kind = CodecKind::aqsgd;
          settings.bits = 2 + static_cast<int>(cases.size()) % 4;
          settings.scale = scale;
          settings.tile = 24;
          settings.rms_step = rms_step;
          settings.entropy_coding = true;
          settings.rounding = rounding;
          settings.first_visit = cases.size() % 2 == 0 ? FirstVisit::quantize8 : FirstVisit::fp32;
          if (!contradiction_in(settings)) cases.push_back({settings, storage});
        }
  return cases;
}

/// TopK and quantised values without and with each kind of error feedback, as gradients have it: at
/// scales that are no powers of two. TopK's changes of activations.
inline std::vector<EndsCase> feedback_ends_cases() {
  std::vector<EndsCase> cases;
  const auto add = [&cases](CodecSettings settings) {
    const auto storage = static_cast<MemoryStorage>(cases.size() % kMemoryStorageNames.size());
    settings.topk = cases.size() % 2 == 0 ? 0.3 : 0.05;
    settings.tile = 24;
    settings.rounding = cases.size() % 3 == 0 ? Rounding::stochastic : Rounding::nearest;
    const double scale = sends_changes(settings) ? 1 : 0.37;
    if (!contradiction_in(settings)) cases.push_back({settings, storage, scale});
  };
  const auto add_with_feedback = [&add](CodecSettings settings) {
    add(settings);
    settings.error_feedback = true;
    for (const auto kind : {FeedbackKind::ef, FeedbackKind::ef21, FeedbackKind::mixed}) {
      settings.feedback_kind = kind;
      add(settings);
    }
  };
  CodecSettings settings;
  settings.bits = 3;
  for (const auto values : {ChosenValues::fp32, ChosenValues::fp16, ChosenValues::codes}) {
    settings.values = values;
    settings.kind = CodecKind::topk;
    add_with_feedback(settings);
    settings.kind = CodecKind::aqsgd_topk;
    for (const auto first : {FirstVisit::fp32, FirstVisit::quantize8}) {
      settings.first_visit = first;
      add(settings);
    }
  }
  settings.kind = CodecKind::directq;
  for (const auto scale : {ScaleKind::channel, ScaleKind::tile})
    for (const bool coded : {false, true}) {
      settings.scale = scale;
      settings.entropy_coding = coded;
      settings.bits = coded ? 4 : 2;
      add_with_feedback(settings);
    }
  return cases;
}

/// One step for a message with every storage, with first visits of other formats.
inline std::vector<EndsCase> message_ends_cases() {
  std::vector<EndsCase> cases;
  for (const auto storage : {MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16,
                             MemoryStorage::bits8, MemoryStorage::bits4}) {
    CodecSettings settings;
    settings.kind = CodecKind::aqsgd;
    settings.scale = ScaleKind::message;
    settings.tile = 24;
    settings.rms_step = cases.size() % 2 == 0 ? 0.4 : 1.3;
    settings.rounding = cases.size() % 3 == 1 ? Rounding::stochastic : Rounding::nearest;
    settings.entropy_coding = true;
    settings.first_visit = cases.size() % 3 == 0 ? FirstVisit::quantize8 : FirstVisit::steps;
    cases.push_back({settings, storage, 1, {3, 40, 77}, 24});
  }
  return cases;
}

/// Storages, first visits, bits, scales, roundings and levels, mixed so that each pair occurs; and
/// the cases above.
inline std::vector<EndsCase> ends_cases() {
  std::vector<EndsCase> cases;
  int count = 0;
  for (const auto storage : {MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16,
                             MemoryStorage::bits8, MemoryStorage::bits4})
    for (const auto first : {FirstVisit::fp32, FirstVisit::quantize8})
      for (const auto scale : {ScaleKind::channel, ScaleKind::tile})
        for (const auto rounding : {Rounding::nearest, Rounding::stochastic})
          for (const auto levels : {Levels::symmetric, Levels::asymmetric}) {
            CodecSettings settings;
            settings.kind = CodecKind::aqsgd;
            settings.bits = 2 + (count * 5 + count / 7) % 7;
            ++count;
            settings.scale = scale;
            settings.tile = count % 3 == 0 ? kWholeRow : 24;
            settings.rounding = rounding;
            settings.levels = levels;
            settings.first_visit = first;
            cases.push_back({settings, storage});
          }
  for (const auto& others : {coded_ends_cases(), feedback_ends_cases(), message_ends_cases()})
    cases.insert(cases.end(), others.begin(), others.end());
  return cases;
}

/// Activations of a sample that change with the step; some channels are 50 times the others.
inline float ends_value(std::uint64_t sample, int step, int t, int c) {
  const auto noise = [](std::uint64_t key) {
    key = (key ^ (key >> 31)) * 0x9e3779b97f4a7c15ull;
    key = (key ^ (key >> 29)) * 0xbf58476d1ce4e5b9ull;
    return static_cast<float>(static_cast<std::int64_t>(key >> 40) - (1 << 23)) * 0x1p-23f;
  };
  const std::uint64_t place =
      (sample * 131 + static_cast<std::uint64_t>(t)) * 1031 + static_cast<std::uint64_t>(c);
  const float size = c % 19 == 3 ? 50.0f : 1.0f;
  return size *
         (noise(place * 64) + 0.25f * noise(place * 64 + 1 + static_cast<std::uint64_t>(step)));
}

/// Samples of a step: three, at the last step two; each is first seen at another step.
inline Crossing ends_visit(const EndsCase& test, int step,
                           std::vector<std::uint32_t>& visits_of_sample) {
  Crossing visit;
  visit.scale = test.scale == 1 ? 1 : test.scale / (step + 1);
  visit.seed = 7;
  visit.step = static_cast<std::uint64_t>(step) + (1ull << 40);
  visit.boundary = 2;
  const int samples = step + 1 == test.steps ? 2 : 3;
  for (int b = 0; b < samples; ++b) {
    const int sample = (step * 2 + b) % kEndsSamples;
    visit.sample_ids.push_back(static_cast<std::uint64_t>(sample) + (1ull << 33));
    visit.tokens.push_back(sample == 1 ? 0 : test.shape.tokens - sample % 3);
    visit.visits.push_back(visits_of_sample[sample]++);
  }
  return visit;
}

class End {
 public:
  explicit End(const EndsCase& test)
      : test_(test),
        codec(make_codec(test.settings, test.shape, test.storage)),
        pool("deltapipe::Test::pool", codec->record().bytes(BoundarySide::sender) * kEndsSamples),
        x_BTC("deltapipe::Test::x", test.shape.max_samples * test.shape.tokens,
              test.shape.channels),
        payload("deltapipe::Test::payload", codec->max_payload_bytes()) {
    Kokkos::deep_copy(pool, garbage);  // a first visit reads nothing of it
    Kokkos::deep_copy(payload, garbage++);
  }

  MemoryRecords records(const Crossing& visit) const {
    MemoryRecords records{pool, {}};
    for (const std::uint64_t id : visit.sample_ids)
      records.offset_B.push_back((id & 0xff) * codec->record().bytes(BoundarySide::sender));
    return records;
  }

  std::vector<std::uint8_t> send(const Crossing& visit, int step) {
    auto host = Kokkos::create_mirror_view(x_BTC);
    for (std::size_t row = 0; row < host.extent(0); ++row)
      for (std::size_t c = 0; c < host.extent(1); ++c) {
        const std::size_t b = row / test_.shape.tokens;
        const int t = static_cast<int>(row % test_.shape.tokens);
        const bool valid = b < visit.sample_ids.size() && t < visit.tokens[b];
        host(row, c) =
            valid ? ends_value(visit.sample_ids[b], step, t, static_cast<int>(c)) : std::nanf("");
      }
    Kokkos::deep_copy(x_BTC, host);
    const std::size_t bytes = codec->encode(ExecSpace(), visit, x_BTC, records(visit), payload);
    Kokkos::fence();
    const auto sent = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), payload);
    return {sent.data(), sent.data() + bytes};
  }

  void receive(const Crossing& visit, const std::uint8_t* bytes, std::size_t size) {
    auto host = Kokkos::create_mirror_view(payload);
    std::memcpy(host.data(), bytes, std::min(size, host.extent(0)));
    Kokkos::deep_copy(payload, host);
    codec->decode(ExecSpace(), visit, payload, size, records(visit), x_BTC);
    Kokkos::fence();
  }

  /// Bytes that both ends keep.
  std::uint64_t hash_of_records() const {
    return codec->record().shared_bytes > 0 ? hash_of(pool) : 0;
  }
  std::uint64_t hash_of_activations() const { return hash_of(x_BTC); }

  EndsCase test_;
  std::unique_ptr<Codec> codec;
  DeviceBytes pool;
  Activations x_BTC;
  DeviceBytes payload;

 private:
  template <class View>
  static std::uint64_t hash_of(const View& view) {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
    return XXH64(host.data(), host.size() * sizeof(typename View::value_type), 0);
  }
  static inline std::uint8_t garbage = 17;
};

/// Record of an end: payloads one after another, each behind its length in 8 bytes, and hashes
/// after all steps.
struct EndsRun {
  std::vector<std::uint8_t> stream;
  std::uint64_t records = 0;
  std::uint64_t activations = 0;  ///< receiver only: of all steps
};

inline EndsRun run_sender(const EndsCase& test) {
  End end(test);
  EndsRun run;
  std::vector<std::uint32_t> visits(kEndsSamples, 0);
  for (int step = 0; step < test.steps; ++step) {
    const auto bytes = end.send(ends_visit(test, step, visits), step);
    std::uint8_t length[8];
    const std::uint64_t size = bytes.size();
    std::memcpy(length, &size, sizeof length);
    run.stream.insert(run.stream.end(), length, length + sizeof length);
    run.stream.insert(run.stream.end(), bytes.begin(), bytes.end());
  }
  run.records = end.hash_of_records();
  return run;
}

inline EndsRun run_receiver(const EndsCase& test, const std::vector<std::uint8_t>& stream) {
  End end(test);
  EndsRun run;
  std::vector<std::uint32_t> visits(kEndsSamples, 0);
  std::size_t at = 0;
  for (int step = 0; step < test.steps; ++step) {
    const Crossing visit = ends_visit(test, step, visits);
    std::uint64_t size = 0;
    if (at + sizeof size > stream.size()) return run;
    std::memcpy(&size, stream.data() + at, sizeof size);
    at += sizeof size;
    if (size > stream.size() - at) return run;
    end.receive(visit, stream.data() + at, size);
    at += size;
    run.activations = run.activations * 31 + end.hash_of_activations();
  }
  run.records = end.hash_of_records();
  return run;
}

}  // namespace deltapipe::test
