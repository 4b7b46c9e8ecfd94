// SPDX-License-Identifier: BSD-3-Clause
#include <Random123/philox.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "core/base/error.hpp"
#include "core/base/numeric/random.hpp"
#include "core/codec/codec.hpp"
#include "support/codec_reference.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

CodecSettings quantize(int bits, ScaleKind scale = ScaleKind::tile,
                       Rounding rounding = Rounding::nearest, int tile = kWholeRow) {
  CodecSettings settings;
  settings.kind = CodecKind::directq;
  settings.bits = bits;
  settings.scale = scale;
  settings.tile = tile;
  settings.rounding = rounding;
  settings.levels = Levels::symmetric;
  return settings;
}

Crossing visit_of(std::vector<int> tokens) {
  Crossing visit;
  for (std::size_t b = 0; b < tokens.size(); ++b) visit.sample_ids.push_back(40 + b);
  visit.visits.assign(tokens.size(), 0);
  visit.tokens = std::move(tokens);
  return visit;
}

/// One direction of a boundary without memory.
struct Link {
  Link(const CodecSettings& settings, const CodecShape& extents)
      : shape(extents),
        codec(make_codec(settings, extents, MemoryStorage::fp16)),
        x_BTC("deltapipe::Test::x", extents.max_samples * extents.tokens, extents.channels),
        payload("deltapipe::Test::payload", codec->max_payload_bytes()) {}

  std::vector<std::uint8_t> encode(const Crossing& visit, const std::vector<float>& x) {
    auto host = Kokkos::create_mirror_view(x_BTC);
    std::copy(x.begin(), x.end(), host.data());
    Kokkos::deep_copy(x_BTC, host);
    Kokkos::deep_copy(payload, std::uint8_t{0xa5});
    bytes = codec->encode(ExecSpace(), visit, x_BTC, {}, payload);
    Kokkos::fence();
    const auto sent = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), payload);
    return {sent.data(), sent.data() + bytes};
  }

  std::vector<float> decode(const Crossing& visit) {
    Kokkos::deep_copy(x_BTC, 99.0f);
    codec->decode(ExecSpace(), visit, payload, bytes, {}, x_BTC);
    Kokkos::fence();
    const auto y = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x_BTC);
    return {y.data(), y.data() + y.size()};
  }

  CodecShape shape;
  std::unique_ptr<Codec> codec;
  Activations x_BTC;
  DeviceBytes payload;
  std::size_t bytes = 0;
};

void append_step(std::vector<std::uint8_t>& bytes, float step) {
  std::uint32_t bits;
  std::memcpy(&bits, &step, sizeof bits);
  REQUIRE((bits & 0x80007fffu) == 0);
  bytes.push_back(static_cast<std::uint8_t>(bits >> 15));
  bytes.push_back(static_cast<std::uint8_t>(bits >> 23));
}

void append_codes(std::vector<std::uint8_t>& bytes, const std::vector<int>& levels,
                  const CodecSettings& settings) {
  std::vector<unsigned> codes;
  for (const int level : levels) codes.push_back(code_of(level, settings.bits, settings.levels));
  const auto packed = naive_pack(codes, settings.bits);
  bytes.insert(bytes.end(), packed.begin(), packed.end());
}

struct Expected {
  std::vector<std::uint8_t> payload;
  std::vector<float> seen;
};

/// Returns the payload and the values of the whole micro-batch, row by row.
Expected expect(const CodecSettings& settings, const CodecShape& shape, const Crossing& visit,
                const std::vector<float>& x) {
  Expected expected;
  const int n = shape.channels;
  expected.seen.assign(x.size(), 0.0f);
  std::vector<float> channel_steps;
  if (settings.scale == ScaleKind::channel) {
    for (int c = 0; c < n; ++c) {
      std::vector<float> column;
      for (std::size_t b = 0; b < visit.tokens.size(); ++b)
        for (int t = 0; t < visit.tokens[b]; ++t)
          column.push_back(x[(b * shape.tokens + t) * n + c]);
      channel_steps.push_back(naive_quantize(column, settings.bits, settings.levels).step);
      append_step(expected.payload, channel_steps[c]);
    }
    while (expected.payload.size() % 4 != 0) expected.payload.push_back(0);
  }
  for (std::size_t b = 0; b < visit.tokens.size(); ++b) {
    std::vector<std::vector<int>> rows;
    for (int t = 0; t < visit.tokens[b]; ++t) {
      const std::size_t at = (b * shape.tokens + t) * n;
      std::vector<int> levels;
      const int width = settings.scale == ScaleKind::channel ? 1 : settings.tile;
      for (int first = 0; first < n; first += width) {
        const int end = std::min(n, first + width);
        const std::vector<float> part(x.begin() + at + first, x.begin() + at + end);
        Quantized q = naive_quantize(part, settings.bits, settings.levels);
        if (settings.scale == ScaleKind::channel) {
          q.step = channel_steps[first];
          q.level = naive_levels(part, q.step, settings.bits, settings.levels);
        } else {
          append_step(expected.payload, q.step);
        }
        for (const int level : q.level) {
          expected.seen[at + levels.size()] = static_cast<float>(level) * q.step;
          levels.push_back(level);
        }
      }
      rows.push_back(levels);
    }
    for (const auto& row : rows) append_codes(expected.payload, row, settings);
    while (expected.payload.size() % 4 != 0) expected.payload.push_back(0);
  }
  return expected;
}

}  // namespace

TEST_CASE("payloads equal the reference's, byte by byte") {
  const auto scale = GENERATE(ScaleKind::channel, ScaleKind::tile);
  const int tile = GENERATE(16, kWholeRow);
  const auto levels = GENERATE(Levels::symmetric, Levels::asymmetric);
  const int channels = GENERATE(1, 7, 64, 77);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int bits = 2; bits <= 8; ++bits) {
    CodecSettings settings = quantize(bits, scale, Rounding::nearest, tile);
    settings.levels = levels;
    INFO(describe(settings) << ", channels " << channels);
    Link link(settings, {3, 4, channels});
    const Crossing visit = visit_of({3, 0, 4});
    std::vector<float> x(12 * channels);
    for (float& value : x) value = std::nearbyint(normal(random) * 64) / 16;
    const Expected expected = expect(settings, link.shape, visit, x);
    // Neither padding nor the former contents of the buffers count.
    for (int row = 3; row < 8; ++row)
      for (int c = 0; c < channels; ++c) x[row * channels + c] = std::nanf("");
    const std::vector<std::uint8_t> payload = link.encode(visit, x);
    REQUIRE(payload.size() == expected.payload.size());
    std::vector<std::uint8_t> clean = payload;  // bytes of 0xa5 are not compared
    for (std::size_t i = 0; i < clean.size(); ++i)
      if (clean[i] == 0xa5) clean[i] = expected.payload[i];
    REQUIRE(clean == expected.payload);
    REQUIRE(link.decode(visit) == expected.seen);
  }
}

TEST_CASE("rounding to nearest has errors of at most half a step") {
  const int bits = GENERATE(2, 3, 4, 5, 6, 7, 8);
  const int channels = 129;
  Link link(quantize(bits), {1, 20, channels});
  std::mt19937 random(4);
  std::student_t_distribution<float> heavy(3);
  std::vector<float> x(20 * channels);
  for (float& value : x) value = 1e-9f * heavy(random);  // gradients are this small
  link.encode(visit_of({20}), x);
  const std::vector<float> seen = link.decode(visit_of({20}));
  for (int t = 0; t < 20; ++t) {
    float scale = 0;
    for (int c = 0; c < channels; ++c) scale = std::max(scale, std::abs(x[t * channels + c]));
    const float bound = scale / static_cast<float>((1 << (bits - 1)) - 1) / 2 * (1 + 0x1p-8f);
    for (int c = 0; c < channels; ++c)
      REQUIRE(std::abs(seen[t * channels + c] - x[t * channels + c]) <= bound);
  }
}

TEST_CASE("asymmetric levels at 2 bits are -1, -1/2, 0 and 1/2 of the scale") {
  CodecSettings settings = quantize(2);
  settings.levels = Levels::asymmetric;
  Link link(settings, {1, 1, 8});
  link.encode(visit_of({1}), {-2, 2, 1, -1, 0.4f, -0.6f, 0, 0.6f});
  CHECK(link.decode(visit_of({1})) == std::vector<float>{-2, 1, 1, -1, 0, -1, 0, 1});
}

TEST_CASE("stochastic rounding is unbiased") {
  const int bits = GENERATE(2, 3, 8);
  const auto scale = GENERATE(ScaleKind::tile, ScaleKind::channel);
  const int channels = 48, tokens = 4, repeats = 3000;
  Link link(quantize(bits, scale, Rounding::stochastic, 16), {1, tokens, channels});
  std::vector<float> x(tokens * channels);
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (float& value : x) value = uniform(random);
  Crossing visit = visit_of({tokens});
  std::vector<double> sum(x.size()), sum2(x.size());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    visit.step = repeat;
    link.encode(visit, x);
    const std::vector<float> seen = link.decode(visit);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = double{seen[i]} - x[i];
      sum[i] += error;
      sum2[i] += error * error;
    }
  }
  const double step = 1.0 / ((1 << (bits - 1)) - 1);
  double all = 0, all2 = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    // Errors that hardly ever occur have no measured variance.
    CHECK(std::abs(sum[i]) <= 5 * std::sqrt(sum2[i]) + 8 * step);
    all += sum[i];
    all2 += sum2[i];
  }
  CHECK(std::abs(all) <= 5 * std::sqrt(all2));
}

TEST_CASE("stochastic codes depend on run, step, boundary, direction, sample and nothing else") {
  const int tile = GENERATE(16, kWholeRow);
  const CodecShape shape{4, 3, 80};
  Link link(quantize(4, ScaleKind::tile, Rounding::stochastic, tile), shape);
  std::vector<float> x(12 * 80);
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(random);
  std::copy(x.begin(), x.begin() + 240, x.begin() + 720);
  Crossing visit = visit_of({3, 2, 3, 3});
  visit.sample_ids = {5, 6, 7, 5};
  const auto bytes = link.encode(visit, x);
  const std::vector<float> seen = link.decode(visit);
  CHECK(std::equal(seen.begin(), seen.begin() + 240, seen.begin() + 720));
  CHECK(link.encode(visit, x) == bytes);
  const auto text = [](const std::vector<std::uint8_t>& payload) {
    return std::string(payload.begin(), payload.end());
  };
  std::set<std::string> all = {text(bytes)};
  const auto changed = [&](auto change) {
    Crossing other = visit;
    change(other);
    all.insert(text(link.encode(other, x)));
  };
  changed([](Crossing& v) { v.seed = 1; });
  changed([](Crossing& v) { v.step = 1; });
  changed([](Crossing& v) { v.step = 1ull << 32; });
  changed([](Crossing& v) { v.boundary = 1; });
  changed([](Crossing& v) { v.kind = CrossingKind::gradient; });
  changed([](Crossing& v) { v.sample_ids[0] = 8; });
  changed([](Crossing& v) { v.sample_ids[0] = 5 + (1ull << 32); });
  CHECK(all.size() == 8);
}

TEST_CASE("Philox equals Random123's") {
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const r123::Philox4x32::ctr_type counter = {{i, i * 77, ~i, i << 20}};
    const r123::Philox4x32::key_type key = {{i * 3, 0xdeadbeefu ^ i}};
    const auto expected = r123::Philox4x32()(counter, key);
    const auto block = philox(i, i * 77, ~i, i << 20, (std::uint64_t{key[1]} << 32) | key[0]);
    for (int w = 0; w < 4; ++w) REQUIRE(block.word[w] == expected[w]);
  }
}

TEST_CASE("zero, tiny, huge and non-finite values are defined") {
  const int bits = GENERATE(2, 3, 8);
  const auto scale = GENERATE(ScaleKind::channel, ScaleKind::tile);
  const auto rounding = GENERATE(Rounding::nearest, Rounding::stochastic);
  const auto levels = GENERATE(Levels::symmetric, Levels::asymmetric);
  CodecSettings settings = quantize(bits, scale, rounding);
  settings.levels = levels;
  INFO(describe(settings));
  Link link(settings, {1, 1, 9});
  const Crossing visit = visit_of({1});
  const std::vector<float> zeros(9, 0.0f);
  link.encode(visit, zeros);
  CHECK(link.decode(visit) == zeros);
  link.encode(visit, std::vector<float>(9, 1e-44f));
  CHECK(link.decode(visit) == zeros);
  const float inf = std::numeric_limits<float>::infinity();
  link.encode(visit, {inf, -inf, std::nanf(""), inf, -inf, inf, inf, inf, inf});
  CHECK(link.decode(visit) == zeros);
  CHECK(link.codec->take_statistics(ExecSpace()).nonfinite == 9);
  link.encode(visit, {3.4e38f, -3.4e38f, 0, 3.4e38f, 1, 2, 3, -4, 3.4028234e38f});
  for (const float value : link.decode(visit)) CHECK(std::isfinite(value));
  CHECK(link.codec->take_statistics(ExecSpace()).nonfinite == 0);
  if (scale == ScaleKind::channel) return;
  link.encode(visit, {inf, -inf, std::nanf(""), 1, -1, 0, 0, 0, 0});
  const std::vector<float> seen = link.decode(visit);
  // The outermost levels: -1 and 1, or without the topmost one, or such that the topmost is 1.
  const float negative_levels = static_cast<float>(1 << (bits - 1));
  float lowest = -1, highest = 1;
  if (levels == Levels::asymmetric && rounding == Rounding::nearest)
    highest = 1 - 1 / negative_levels;
  if (levels == Levels::asymmetric && rounding == Rounding::stochastic)
    lowest = -negative_levels / (negative_levels - 1);
  CHECK(seen[0] == Approx(highest).epsilon(0x1p-7));
  CHECK(seen[1] == Approx(lowest).epsilon(0x1p-7));
  CHECK(seen[2] == 0);
}

TEST_CASE("a constant row is exact up to its step") {
  const int bits = GENERATE(2, 4, 8);
  Link link(quantize(bits), {1, 1, 33});
  link.encode(visit_of({1}), std::vector<float>(33, -0.75f));
  for (const float value : link.decode(visit_of({1})))
    CHECK(value == Approx(-0.75f).epsilon(0x1p-8));
}

TEST_CASE("ids differ if the ends would not understand each other") {
  std::set<std::uint32_t> ids;
  int count = 0;
  const auto add = [&](const CodecSettings& settings, CodecShape shape, MemoryStorage storage) {
    ids.insert(make_codec(settings, shape, storage)->id());
    ++count;
  };
  const CodecShape shape{1, 4, 64};
  for (const auto kind :
       {CodecKind::none, CodecKind::fp16, CodecKind::bf16, CodecKind::directq, CodecKind::aqsgd}) {
    CodecSettings settings = quantize(4);
    settings.kind = kind;
    add(settings, shape, MemoryStorage::fp16);
    add(settings, {1, 4, 65}, MemoryStorage::fp16);
    if (kind != CodecKind::directq && kind != CodecKind::aqsgd) continue;
    CodecSettings other = settings;
    other.bits = 3;
    add(other, shape, MemoryStorage::fp16);
    other = settings;
    other.rounding = Rounding::stochastic;
    add(other, shape, MemoryStorage::fp16);
    other = settings;
    other.levels = Levels::asymmetric;
    add(other, shape, MemoryStorage::fp16);
    other = settings;
    other.scale = ScaleKind::channel;
    add(other, shape, MemoryStorage::fp16);
    other = settings;
    other.tile = 8;
    add(other, shape, MemoryStorage::fp16);
    if (kind != CodecKind::aqsgd) continue;
    add(settings, shape, MemoryStorage::bf16);
    other = settings;
    other.first_visit = FirstVisit::fp32;
    add(other, shape, MemoryStorage::fp16);
  }
  CHECK(ids.size() == static_cast<std::size_t>(count));
}

TEST_CASE("an empty micro-batch is an empty payload") {
  for (const auto scale : {ScaleKind::channel, ScaleKind::tile}) {
    Link link(quantize(4, scale), {2, 3, 10});
    CHECK(link.encode(visit_of({}), {}).empty());
    CHECK(link.decode(visit_of({})) == std::vector<float>(60, 0.0f));
    CHECK(link.encode(visit_of({0, 0}), {}).empty());
    CHECK(link.decode(visit_of({0, 0})) == std::vector<float>(60, 0.0f));
  }
}
