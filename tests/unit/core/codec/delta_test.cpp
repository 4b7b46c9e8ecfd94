// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "core/base/error.hpp"
#include "core/base/numeric/number_formats.hpp"
#include "support/codec_ends.hpp"
#include "support/codec_link.hpp"
#include "support/codec_pair.hpp"
#include "support/codec_reference.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

CodecSettings delta(int bits, FirstVisit first = FirstVisit::fp32) {
  CodecSettings settings;
  settings.kind = CodecKind::aqsgd;
  settings.bits = bits;
  settings.scale = ScaleKind::tile;
  settings.tile = kWholeRow;
  settings.rounding = Rounding::nearest;
  settings.levels = Levels::symmetric;
  settings.first_visit = first;
  return settings;
}

float stored(MemoryStorage storage, double value) {
  const auto x = static_cast<float>(value);
  if (storage == MemoryStorage::fp16) return float_of_half(half_of(x));
  if (storage == MemoryStorage::bf16) return float_of_bfloat(bfloat_of(x));
  return x;
}

}  // namespace

TEST_CASE("both ends keep the same bits for every codec") {
  for (const EndsCase& test : ends_cases()) {
    INFO(describe(test.settings) << ", storage " << static_cast<int>(test.storage));
    const EndsRun sender = run_sender(test);
    const EndsRun receiver = run_receiver(test, sender.stream);
    REQUIRE(sender.records == receiver.records);
  }
}

// Former contents of the buffer, and of records that a first visit does not read, do not matter.
TEST_CASE("equal values have equal payloads to the last byte") {
  std::vector<EndsCase> cases = ends_cases();
  for (const auto kind : {CodecKind::none, CodecKind::fp16, CodecKind::bf16}) {
    cases.push_back({{}, MemoryStorage::fp32});
    cases.back().settings.kind = kind;
  }
  for (const EndsCase& test : cases) {
    INFO(describe(test.settings) << ", storage " << static_cast<int>(test.storage));
    REQUIRE(run_sender(test).stream == run_sender(test).stream);
  }
}

#ifdef DELTAPIPE_CODEC_PLAIN  // not under sanitizers
TEST_CASE("both ends keep the same bits if one is compiled with other flags") {
  const auto directory = std::filesystem::temp_directory_path() /
                         ("deltapipe-codec-" + std::to_string(std::random_device()()));
  std::filesystem::create_directory(directory);
  const std::string other =
      GENERATE(std::string(DELTAPIPE_CODEC_PLAIN), std::string(DELTAPIPE_CODEC_FUSED));
  const std::string theirs = (directory / "theirs").string();
  const std::string ours = (directory / "ours").string();
  const std::string hashes = (directory / "hashes").string();
  REQUIRE(std::system((other + " send " + theirs).c_str()) == 0);
  std::ifstream file(theirs, std::ios::binary);
  std::ofstream out(ours, std::ios::binary);
  std::vector<EndsRun> near_ends;
  for (const EndsCase& test : ends_cases()) {
    INFO(describe(test.settings) << ", storage " << static_cast<int>(test.storage));
    std::uint64_t head[2] = {};
    REQUIRE(file.read(reinterpret_cast<char*>(head), sizeof head));
    std::vector<std::uint8_t> stream(head[0]);
    REQUIRE(
        file.read(reinterpret_cast<char*>(stream.data()), static_cast<std::streamsize>(head[0])));
    CHECK(run_receiver(test, stream).records == head[1]);
    EndsRun sender = run_sender(test);
    sender.activations = run_receiver(test, sender.stream).activations;
    head[0] = sender.stream.size();
    out.write(reinterpret_cast<const char*>(head), sizeof head);
    out.write(reinterpret_cast<const char*>(sender.stream.data()),
              static_cast<std::streamsize>(head[0]));
    near_ends.push_back(std::move(sender));
  }
  out.close();
  REQUIRE(std::system((other + " receive " + ours + " > " + hashes).c_str()) == 0);
  std::ifstream lines(hashes);
  lines >> std::hex;
  for (const EndsRun& near : near_ends) {
    std::uint64_t records = 0, activations = 0;
    REQUIRE(lines >> records >> activations);
    CHECK(records == near.records);
    CHECK(activations == near.activations);
  }
  std::filesystem::remove_all(directory);
}
#endif

TEST_CASE("the next stage sees m + Q(a - m) as it was sent; the memory stores it rounded") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16);
  const auto levels = GENERATE(Levels::symmetric, Levels::asymmetric);
  const int bits = GENERATE(2, 3, 4, 8);
  CodecSettings settings = delta(bits);
  settings.levels = levels;
  const CodecShape shape{1, 3, 45};
  CodecPair ends(settings, shape, storage);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> a(135), memory(135);
  for (float& value : a) value = 4 * normal(random);
  for (int step = 0; step < 5; ++step) {
    const std::vector<float> seen = ends.cross(a);
    for (int t = 0; t < 3; ++t) {
      std::vector<float> change(45);
      for (int c = 0; c < 45; ++c) change[c] = a[t * 45 + c] - memory[t * 45 + c];
      const Quantized q = naive_quantize(change, bits, levels);
      for (int c = 0; c < 45; ++c) {
        float& m = memory[t * 45 + c];
        const double x = step == 0 ? double{a[t * 45 + c]} : m + double{q.step} * q.level[c];
        REQUIRE(seen[t * 45 + c] == static_cast<float>(x));
        m = stored(storage, x);
      }
    }
    for (float& value : a) value += 0.3f * normal(random);
  }
}

TEST_CASE(
    "memories of few bits are requantised by tiles of 64 channels, after the next stage saw them") {
  const auto [storage, bits] =
      GENERATE(std::make_pair(MemoryStorage::bits8, 8), std::make_pair(MemoryStorage::bits4, 4));
  const int channels = 150;
  CodecPair ends(delta(4), {1, 1, channels}, storage);
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> a(channels), memory(channels);
  for (float& value : a) value = normal(random);
  for (int step = 0; step < 4; ++step) {
    const std::vector<float> seen = ends.cross(a);
    std::vector<float> change(channels);
    for (int c = 0; c < channels; ++c) change[c] = a[c] - memory[c];
    const Quantized q = naive_quantize(change, 4, Levels::symmetric);
    for (int c = 0; c < channels; ++c)
      memory[c] = step == 0 ? a[c] : static_cast<float>(memory[c] + double{q.step} * q.level[c]);
    REQUIRE(seen == memory);
    for (int first = 0; first < channels; first += 64) {
      const int width = std::min(64, channels - first);
      const Quantized tile = naive_quantize(
          {memory.begin() + first, memory.begin() + first + width}, bits, Levels::symmetric);
      for (int c = 0; c < width; ++c)
        memory[first + c] = static_cast<float>(tile.level[c]) * tile.step;
    }
    for (float& value : a) value += 0.1f * normal(random);
  }
}

TEST_CASE("first visits are as exact as their format allows") {
  const auto [first, bound, bytes] =
      GENERATE(std::make_tuple(FirstVisit::fp32, 0.0, 4 * 128),
               std::make_tuple(FirstVisit::quantize8, 1.005 / 254, 128 + 2));
  CodecPair ends(delta(3, first), {1, 2, 128}, MemoryStorage::fp32);
  std::vector<float> a(256);
  for (int i = 0; i < 256; ++i) a[i] = std::sin(static_cast<float>(i * i));
  CHECK(ends.sender->payload_bytes(ends.visit) == std::size_t(2 * bytes));
  const std::vector<float> seen = ends.cross(a);
  for (int i = 0; i < 256; ++i) REQUIRE(std::abs(seen[i] - a[i]) <= bound);
  const std::vector<float> second = ends.cross(a);
  for (int i = 0; i < 256; ++i) REQUIRE(std::abs(second[i] - a[i]) <= bound / 6 * 1.01);
}

TEST_CASE("an unchanging activation is learnt at the rate of the bits") {
  const int bits = GENERATE(2, 3, 4);
  CodecPair ends(delta(bits, FirstVisit::quantize8), {1, 1, 64}, MemoryStorage::fp32);
  std::vector<float> a(64);
  for (int i = 0; i < 64; ++i) a[i] = std::cos(static_cast<float>(i * i));
  double error = 1.005 / 254;
  for (int visit = 0; visit < 6; ++visit) {
    const std::vector<float> seen = ends.cross(a);
    double largest = 0;
    for (int i = 0; i < 64; ++i) largest = std::max(largest, std::abs(double{seen[i]} - a[i]));
    CHECK(largest <= error + 0x1p-23);  // fp32 sets a limit
    error *= 0.51 / ((1 << (bits - 1)) - 1);
  }
}

TEST_CASE("memories stay finite for all values") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16,
                                MemoryStorage::bits8, MemoryStorage::bits4);
  const auto first = GENERATE(FirstVisit::fp32, FirstVisit::quantize8);
  CodecPair ends(delta(3, first), {1, 1, 40}, storage);
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> a(40, 1.0f);
  a[1] = inf;
  a[2] = -inf;
  a[3] = std::nanf("");
  a[4] = 3.4e38f;
  a[39] = -3.4e38f;
  for (int step = 0; step < 5; ++step) {
    for (const float value : ends.cross(a)) REQUIRE(std::isfinite(value));
    if (step == 1) std::swap(a[4], a[39]);
  }
  CHECK(ends.sender->take_statistics(ExecSpace()).nonfinite == 15);
  std::fill(a.begin(), a.end(), 0.5f);
  a[3] = std::nanf("");  // no change
  const float before = ends.cross(a)[3];
  if (storage == MemoryStorage::fp32) CHECK(ends.cross(a)[3] == before);
}

// A value that rounds to -0 at the sender is the code 0 at the receiver.
TEST_CASE("zeros have the same sign at both ends") {
  CodecSettings settings = delta(3);
  settings.scale = GENERATE(ScaleKind::tile, ScaleKind::channel);
  settings.tile = GENERATE(64, kWholeRow);
  const int channels = 130;
  CodecLink link(settings, {1, 2, channels}, MemoryStorage::fp32);
  std::vector<float> x(2 * channels, -0.0f);
  link.cross({0}, {2}, x);
  for (int c = 0; c < 2 * channels; ++c) x[c] = c % 7 == 0 ? 3.0f : -0.1f;
  const std::vector<float> seen = link.cross({0}, {2}, x);
  const std::vector<float> kept = link.floats(0);
  CHECK(std::memcmp(seen.data(), kept.data(), 4 * kept.size()) == 0);
}

TEST_CASE("tiles have the errors of their own steps, whatever numbers others have") {
  const float odd = GENERATE(0.0f, 1e35f, 1e38f, 3e38f, std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN());
  const int tile = GENERATE(64, 7);
  CodecSettings settings = delta(3);
  settings.scale = ScaleKind::tile;
  settings.tile = tile;
  const int channels = 1100;  // more tiles than StepsTogether holds
  CodecLink link(settings, {1, 1, channels}, MemoryStorage::fp32);
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  std::vector<float> x(channels);
  for (float& value : x) value = normal(random);
  std::vector<float> memory = link.cross({0}, {1}, x);
  for (int step = 0; step < 3; ++step) {
    for (float& value : x) value = normal(random);
    x[70] = step == 1 ? -odd : odd;
    const std::vector<float> seen = link.cross({0}, {1}, x);
    for (int first = 0; first < channels; first += tile) {
      const int end = std::min(first + tile, channels);
      float largest = 0;
      for (int c = first; c < end; ++c) largest = std::max(largest, std::abs(x[c] - memory[c]));
      for (int c = first; c < end; ++c) {
        REQUIRE(std::isfinite(seen[c]));
        if (70 < first || 70 >= end)
          REQUIRE(std::abs(seen[c] - x[c]) <= largest / 3 * 1.005f / 2 + 1e-6f);
      }
    }
    memory = seen;
  }
}

TEST_CASE("a warm-up passes on fp32 and stores it in the memories") {
  const auto storage = GENERATE(MemoryStorage::fp16, MemoryStorage::bits4);
  CodecSettings settings = delta(3, FirstVisit::quantize8);
  settings.warmup_epochs = 2;
  CodecPair ends(settings, {1, 2, 64}, storage);
  std::vector<float> a(128);
  for (int visit = 0; visit < 2; ++visit) {
    for (int i = 0; i < 128; ++i) a[i] = std::sin(static_cast<float>(visit + i * i));
    ends.visit.epoch = visit + 0.5;
    CHECK(ends.sender->payload_bytes(ends.visit) == 4 * 128);
    REQUIRE(ends.cross(a) == a);
  }
  // The change is now only the storage's rounding.
  ends.visit.epoch = 2.5;
  CHECK(ends.sender->payload_bytes(ends.visit) == 2 * (24 + 2));
  const double stored = storage == MemoryStorage::fp16 ? 0x1p-12 : 1.0 / 14;
  const std::vector<float> seen = ends.cross(a);
  for (int i = 0; i < 128; ++i) REQUIRE(std::abs(seen[i] - a[i]) <= 1.005 * stored / 6);
}

TEST_CASE("a warm-up adds no work space of its codec") {
  const CodecShape shape{2, 9, 80};
  const auto bytes = [&](const CodecSettings& settings) {
    return make_codec(settings, shape, MemoryStorage::fp16)->memory_bytes();
  };
  CodecSettings coded;
  coded.kind = CodecKind::aqsgd;
  coded.rms_step = 1;
  coded.entropy_coding = true;
  CodecSettings channel;
  channel.kind = CodecKind::aqsgd;
  channel.scale = ScaleKind::channel;
  CodecSettings sparse;
  sparse.kind = CodecKind::aqsgd_topk;
  CodecSettings ef21;
  ef21.kind = CodecKind::topk;
  ef21.error_feedback = true;
  ef21.feedback_kind = FeedbackKind::ef21;
  for (const CodecSettings& settings : {coded, channel, sparse, ef21}) {
    CodecSettings with = settings;
    with.warmup_epochs = 1;
    CHECK(bytes(with) == bytes(settings) + bytes(CodecSettings{}));
  }
}

TEST_CASE("a payload of the wrong length is an error with boundary and step") {
  const EndsCase test{delta(3), MemoryStorage::fp16};
  End sender(test), receiver(test);
  std::vector<std::uint32_t> visits(kEndsSamples, 0);
  const Crossing visit = ends_visit(test, 0, visits);
  std::vector<std::uint8_t> bytes = sender.send(visit, 0);
  const std::size_t right = bytes.size();
  bytes.resize(right + 4);
  for (const std::size_t wrong : {std::size_t{0}, right - 4, right + 4})
    CHECK_THROWS_AS(receiver.receive(visit, bytes.data(), wrong), UserError);
  CHECK_NOTHROW(receiver.receive(visit, bytes.data(), right));
}

TEST_CASE("a sender's error sums are those of the values that the receiver sees") {
  const auto storage = GENERATE(MemoryStorage::fp16, MemoryStorage::bits4);
  CodecPair ends(delta(3), {1, 4, 50}, storage);
  ends.sender->measure_errors(true);
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  std::vector<float> a(200);
  double error2 = 0, signal2 = 0;
  for (int step = 0; step < 3; ++step) {
    for (float& value : a) value += normal(random);
    const std::vector<float> seen = ends.cross(a);
    for (int i = 0; i < 200; ++i) {
      error2 += std::pow(double{seen[i]} - a[i], 2);
      signal2 += std::pow(double{a[i]}, 2);
    }
  }
  const CodecStatistics sums = ends.sender->take_statistics(ExecSpace());
  CHECK(sums.elements == 600);
  CHECK(sums.error2 == Approx(error2).epsilon(1e-5));
  CHECK(sums.signal2 == Approx(signal2).epsilon(1e-5));
  CHECK(relative_error(sums) == Approx(std::sqrt(error2 / signal2)).epsilon(1e-5));
}
