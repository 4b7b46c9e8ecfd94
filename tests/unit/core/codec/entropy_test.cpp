// SPDX-License-Identifier: BSD-3-Clause
// Entropy coding: codes are restored, need about the bits of their entropy, and are refused if they
// are damaged.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "core/base/error.hpp"
#include "core/codec/entropy/code_streams.hpp"
#include "core/codec/quantizer/packing.hpp"
#include "support/codec_pair.hpp"
#include "support/codec_reference.hpp"
#include "support/entropy_reference.hpp"

using namespace deltapipe;
using namespace deltapipe::test;
using codec::CodeStreams;

namespace {

using Bytes = std::vector<std::uint8_t>;
using Samples = std::vector<CodeStreams::Sample>;

struct Streams {
  Streams(const CodecShape& extents, const CodeStreams::PerFormat& code_bits)
      : shape(extents),
        bits(code_bits),
        streams(extents, code_bits),
        payload("deltapipe::Test::payload", kBegin + streams.max_bytes(all_rows())) {}

  /// Returns the number of all rows, for each of the formats.
  CodeStreams::PerFormat all_rows() const {
    CodeStreams::PerFormat rows{};
    rows.fill(shape.max_samples * shape.tokens);
    return rows;
  }
  VectorRef<std::uint8_t> codes() {
    return VectorRef<std::uint8_t>(streams.codes(),
                                   streams.row_bytes() * shape.max_samples * shape.tokens);
  }
  void set_codes(const Samples& samples, const std::function<std::uint8_t(int)>& code) {
    const auto host = Kokkos::create_mirror_view(codes());
    Kokkos::deep_copy(host, std::uint8_t{0});
    for_each_code(samples, [&](std::size_t at, int format) { host(at) = code(format); });
    Kokkos::deep_copy(codes(), host);
  }
  Bytes codes_of(const Samples& samples, int wanted_format = -1) {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), codes());
    Bytes all;
    for_each_code(samples, [&](std::size_t at, int format) {
      if (wanted_format < 0 || format == wanted_format) all.push_back(host(at));
    });
    return all;
  }
  void for_each_code(const Samples& samples, const std::function<void(std::size_t, int)>& visit) {
    for (std::size_t b = 0; b < samples.size(); ++b)
      for (int t = 0; bits[samples[b].format] > 0 && t < samples[b].tokens; ++t)
        for (int c = 0; c < shape.channels; ++c)
          visit((b * shape.tokens + t) * streams.row_bytes() + c, samples[b].format);
  }

  Bytes encode(const Samples& samples) {
    Kokkos::deep_copy(payload, std::uint8_t{0xa5});
    const std::size_t end = streams.encode(ExecSpace(), samples, payload.data(), kBegin);
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), payload);
    for (std::size_t i = 0; i < kBegin; ++i) REQUIRE(host(i) == 0xa5);
    return {host.data() + kBegin, host.data() + end};
  }
  CodeStreams::Decoded decode(const Samples& samples, const Bytes& bytes) {
    // Exactly as long as the payload: a sanitizer detects an access to any byte after it.
    DeviceBytes exact("deltapipe::Test::exact", kBegin + bytes.size());
    const auto host = Kokkos::create_mirror_view(exact);
    std::copy(bytes.begin(), bytes.end(), host.data() + kBegin);
    Kokkos::deep_copy(exact, host);
    return streams.decode(ExecSpace(), samples, exact.data(), kBegin, exact.extent(0));
  }
  std::size_t most(const Samples& samples) const {
    CodeStreams::PerFormat rows{};
    for (const auto& sample : samples) rows[sample.format] += sample.tokens;
    return streams.max_bytes(rows);
  }

  static constexpr std::size_t kBegin = 12;
  CodecShape shape;
  CodeStreams::PerFormat bits;
  CodeStreams streams;
  DeviceBytes payload;
};

std::size_t packed_and_word(int bits, int channels, int rows) {
  return 4 + (codec::packed_bytes(bits, channels) * rows + 3) / 4 * 4;
}

/// Returns the code of a value that is rounded to a whole number, around the middle of the codes.
std::uint8_t code_of_value(double value, int bits) {
  const int middle = bits == 1 ? 0 : (1 << (bits - 1)) - 1;
  const int top = (1 << bits) - 1;
  return static_cast<std::uint8_t>(
      std::clamp(middle + static_cast<int>(std::nearbyint(value)), 0, top));
}

double laplace(std::mt19937& random) {
  std::exponential_distribution<double> magnitude(std::sqrt(2.0));
  return std::bernoulli_distribution(0.5)(random) ? magnitude(random) : -magnitude(random);
}

}  // namespace

TEST_CASE("frequencies are shares of 4096, at least one for symbols that occur",
          "[codec][entropy]") {
  std::vector<std::vector<std::uint64_t>> all(8, std::vector<std::uint64_t>(256, 0));
  all[0][17] = 5;
  all[1][0] = 1000000000000;
  all[1][255] = 1;
  all[2].assign(256, 1);
  all[3].assign(256, 1);
  all[3][100] = 1000000000;
  for (int s = 0; s < 256; ++s) all[4][s] = std::uint64_t{1} << (s / 8);
  for (int s = 0; s < 256; ++s) all[5][s] = s < 3 ? 1000000 : 1;
  all[6][3] = all[6][4] = all[6][5] = 7;
  std::mt19937 random(3);
  for (int s = 40; s < 90; ++s) all[7][s] = random() % 1000;
  for (const auto& count : all) {
    std::uint32_t frequency[256];
    codec::frequencies_of(count.data(), frequency);
    double total = 0, sum = 0, excess = 0, occurring = 0;
    for (int s = 0; s < 256; ++s) total += static_cast<double>(count[s]);
    for (int s = 0; s < 256; ++s) {
      const double share = static_cast<double>(count[s]) / total;
      CHECK((frequency[s] > 0) == (count[s] > 0));
      sum += frequency[s];
      occurring += count[s] > 0 ? 1 : 0;
      if (count[s] > 0) excess += share * std::log2(share * 4096 / frequency[s]);
    }
    CHECK(sum == 4096);
    CHECK(excess >= -1e-12);
    // Bits per code above the entropy: each rare code takes 1 / 4096 from the others.
    CHECK(excess <= 0.01 - std::log2(1 - occurring / 4096));
    std::uint8_t bytes[codec::kTableBytes];
    std::uint32_t start[257];
    const int size = codec::write_table(frequency, bytes);
    REQUIRE(size <= codec::kTableBytes);
    CHECK(codec::read_table(bytes, static_cast<std::size_t>(size), 256, start) == size);
    for (int s = 0; s < 256; ++s) CHECK(start[s + 1] - start[s] == frequency[s]);
    for (int shorter = 0; shorter < size - 1; ++shorter)
      CHECK(codec::read_table(bytes, static_cast<std::size_t>(shorter), 256, start) == 0);
    if (bytes[1] > 0) CHECK(codec::read_table(bytes, size, bytes[1], start) == 0);
  }
}

TEST_CASE("all codes are restored, in at most packed codes and a word per format",
          "[codec][entropy]") {
  struct Case {
    CodecShape shape;
    CodeStreams::PerFormat bits;
    Samples samples;
  };
  const auto test =
      GENERATE(Case{{1, 1, 1}, {1, 0, 0}, {{0, 1}}}, Case{{1, 9, 7}, {3, 0, 0}, {{0, 9}}},
               Case{{4, 33, 77}, {8, 2, 0}, {{1, 33}, {0, 5}, {1, 31}, {0, 0}}},
               Case{{5, 64, 200}, {0, 4, 0}, {{1, 64}, {0, 60}, {1, 1}, {1, 63}, {0, 64}}},
               Case{{2, 3, 9000}, {5, 5, 0}, {{0, 3}, {1, 2}}}, Case{{3, 2, 8}, {2, 2, 0}, {}},
               Case{{3, 2, 8}, {2, 2, 0}, {{0, 0}, {1, 0}, {1, 0}}},
               Case{{2, 300, 64}, {6, 2, 0}, {{1, 300}, {0, 299}}},
               Case{{1, 1, 70000}, {8, 0, 0}, {{0, 1}}});
  const int kind = GENERATE(0, 1, 2, 3, 4);
  CAPTURE(test.shape.channels, test.samples.size(), kind);
  Streams sender(test.shape, test.bits), receiver(test.shape, test.bits);
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  sender.set_codes(test.samples, [&](int format) -> std::uint8_t {
    const int bits = test.bits[format];
    const unsigned top = (1u << bits) - 1;
    if (kind == 0) return static_cast<std::uint8_t>(random() & top);  // nothing to gain
    if (kind == 1) return static_cast<std::uint8_t>(top);             // always the same
    if (kind == 2) return code_of_value(normal(random), bits);
    if (kind == 3) return random() % 1000 == 0 ? static_cast<std::uint8_t>(random() & top) : 0;
    return code_of_value(0.3 * normal(random), bits);
  });
  const Bytes codes = sender.codes_of(test.samples);
  const Bytes bytes = sender.encode(test.samples);
  std::array<std::size_t, codec::kCodeFormats> rows{};
  for (const auto& sample : test.samples) rows[sample.format] += sample.tokens;
  std::size_t most = 0;
  for (int f = 0; f < codec::kCodeFormats; ++f)
    if (test.bits[f] > 0 && rows[f] > 0)
      most += packed_and_word(test.bits[f], test.shape.channels, static_cast<int>(rows[f]));
  CHECK(sender.most(test.samples) == most);
  CHECK(bytes.size() <= most);
  if (kind == 0) CHECK(bytes.size() >= 0.95 * most - 8);
  CHECK(bytes.size() % 4 == 0);
  const CodeStreams::Decoded decoded = receiver.decode(test.samples, bytes);
  CHECK(decoded.bytes == Streams::kBegin + bytes.size());
  CHECK(decoded.is_sound);
  CHECK(receiver.codes_of(test.samples) == codes);
  CHECK(receiver.encode(test.samples) == bytes);
}

TEST_CASE("codes need at most their entropy, 3 % more and the head", "[codec][entropy]") {
  const std::string data = GENERATE("gauss", "laplace", "sparse");
  const double size = GENERATE(0.4, 0.7, 1.0, 2.0, 10.0);  // standard deviation in steps
  const int channels = GENERATE(256, 768, 1000);
  const CodecShape shape{2, 64, channels};
  const Samples samples = {{0, 64}, {0, 61}};
  Streams sender(shape, {8, 0, 0});
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  sender.set_codes(samples, [&](int) {
    const double value = data == "laplace"                       ? laplace(random)
                         : data == "gauss" || random() % 10 == 0 ? normal(random)
                                                                 : 0.0;
    return code_of_value(size * value, 8);
  });
  const Bytes codes = sender.codes_of(samples);
  const Bytes bytes = sender.encode(samples);
  const int rows_per_stream = std::max(1, (4096 + channels / 2) / channels);
  std::uint32_t coded;
  std::memcpy(&coded, bytes.data(), 4);
  REQUIRE(coded > 0);
  const ReferencePart part =
      read_coded_part(bytes.data() + 4, coded, 125, channels, rows_per_stream);
  CHECK(part.codes == codes);
  const double entropy = entropy_bits(codes) / 8;
  CAPTURE(data, size, channels, entropy, bytes.size(), part.table_bytes);
  const double head = 4 + static_cast<double>(part.table_bytes) + 3;
  // State and length of each stream are six bytes, which matter if little is sent.
  const double streams = std::ceil(125.0 / rows_per_stream);
  const double heads = data == "sparse" ? 6 * streams : 0;
  CHECK(static_cast<double>(bytes.size()) <= 1.03 * entropy + head + heads);
  CHECK(static_cast<double>(bytes.size()) >= entropy);
}

TEST_CASE("damaged streams are detected or decode to valid codes", "[codec][entropy]") {
  const CodecShape shape{3, 40, 48};
  const CodeStreams::PerFormat bits = {8, 3, 4};
  const Samples samples = {{0, 40}, {1, 39}, {2, 40}};
  Streams sender(shape, bits), receiver(shape, bits);
  std::mt19937 random(9);
  std::normal_distribution<double> normal;
  sender.set_codes(samples, [&](int format) -> std::uint8_t {
    if (format == 2) return static_cast<std::uint8_t>(random() % 16);  // sent packed
    return code_of_value(normal(random), bits[format]);
  });
  const Bytes whole = sender.encode(samples);
  std::uint32_t directory[3];
  std::memcpy(directory, whole.data(), sizeof directory);
  REQUIRE(directory[0] > 0);
  REQUIRE(directory[1] > 0);
  REQUIRE(directory[2] == 0);
  const auto is_taken = [&](const Bytes& bytes) {
    const CodeStreams::Decoded decoded = receiver.decode(samples, bytes);
    const bool taken = decoded.bytes == Streams::kBegin + bytes.size() && decoded.is_sound;
    for (int f = 0; taken && f < 3; ++f)
      for (const std::uint8_t code : receiver.codes_of(samples, f)) REQUIRE(code < 1u << bits[f]);
    return taken;
  };
  CHECK(is_taken(whole));
  for (std::size_t size = 0; size < whole.size(); size += size < 200 ? 1 : 37)
    CHECK_FALSE(is_taken({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}));
  Bytes longer = whole;
  longer.resize(whole.size() + 4, 0);
  CHECK_FALSE(is_taken(longer));
  // The final state shows that bits differ: all changes to streams are detected, except for the
  // rare ones that end in the same state.
  const std::size_t first_part = 12, second_part = first_part + (directory[0] + 3) / 4 * 4;
  int taken = 0, changed = 0;
  for (std::size_t i = 0; i < second_part + directory[1]; ++i) {
    if (i >= first_part + directory[0] && i < second_part) continue;  // zeros between the parts
    Bytes other = whole;
    other[i] ^= static_cast<std::uint8_t>(1u << random() % 8);
    taken += is_taken(other);
    ++changed;
  }
  CHECK(taken <= changed / 100);
  for (int trial = 0; trial < 300; ++trial) {
    Bytes other = whole;
    for (int i = 0; i < 1 + trial % 20; ++i) other[random() % other.size()] = random() & 0xff;
    is_taken(other);
  }
}

namespace {

CodecSettings coded(CodecKind kind, int bits, ScaleKind scale, double rms_step,
                    FirstVisit first = FirstVisit::quantize8) {
  CodecSettings settings;
  settings.kind = kind;
  settings.bits = bits;
  settings.scale = scale;
  settings.tile = 24;
  settings.rms_step = rms_step;
  settings.first_visit = first;
  settings.entropy_coding = true;
  return settings;
}

std::vector<float> drifting(int visit, int tokens, int channels, std::mt19937& random,
                            std::vector<float> before) {
  std::normal_distribution<float> normal;
  before.resize(static_cast<std::size_t>(tokens) * channels, 0.0f);
  for (std::size_t i = 0; i < before.size(); ++i)
    before[i] += (visit == 0 ? 1.0f : 0.1f) * normal(random) * (i % 19 == 3 ? 20.0f : 1.0f);
  return before;
}

}  // namespace

TEST_CASE("entropy coding changes the bytes and nothing else", "[codec][entropy]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bits8,
                                MemoryStorage::bits4);
  const auto first = GENERATE(FirstVisit::fp32, FirstVisit::quantize8);
  const auto kind = GENERATE(CodecKind::directq, CodecKind::aqsgd);
  if (kind == CodecKind::directq && (storage != MemoryStorage::fp32 || first != FirstVisit::fp32))
    return;
  for (const auto scale : {ScaleKind::channel, ScaleKind::tile})
    for (int bits = 2; bits <= 8; ++bits) {
      CodecSettings settings = coded(kind, bits, scale, 0.0, first);
      settings.error_feedback = kind == CodecKind::directq && bits % 3 == 0;
      settings.rounding = bits > 2 && bits % 2 == 0 ? Rounding::stochastic : Rounding::nearest;
      CodecSettings packed = settings;
      packed.entropy_coding = false;
      INFO(describe(settings) << ", storage " << static_cast<int>(storage));
      const CodecShape shape{1, 40, 77};
      CodecPair with(settings, shape, storage), without(packed, shape, storage);
      std::mt19937 random(11);
      std::vector<float> x;
      for (int visit = 0; visit < 4; ++visit) {
        x = drifting(visit, shape.tokens, shape.channels, random, x);
        REQUIRE(with.cross(x) == without.cross(x));
        const auto a = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), with.far);
        const auto b = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), without.far);
        const std::size_t shared = with.sender->record().shared_bytes;
        REQUIRE(std::equal(a.data(), a.data() + shared, b.data()));
        CHECK(with.sent_bytes <= without.sent_bytes + 8);
        if (visit > 0 && bits >= 4 && bits < 8 && scale == ScaleKind::tile)
          CHECK(with.sent_bytes < without.sent_bytes);
      }
    }
}

TEST_CASE("both ends keep the same memory with entropy-coded steps of the RMS",
          "[codec][entropy]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16,
                                MemoryStorage::bits8, MemoryStorage::bits4);
  const auto rounding = GENERATE(Rounding::nearest, Rounding::stochastic);
  for (const auto scale : {ScaleKind::tile, ScaleKind::message})
    for (const auto first : {FirstVisit::fp32, FirstVisit::quantize8, FirstVisit::steps})
      for (const double step : {0.05, 0.5, 1.9}) {
        CodecSettings settings = coded(CodecKind::aqsgd, 2, scale, 1.0, first);
        settings.rms_step = step;
        settings.rounding = rounding;
        const CodecShape shape{1, 13, 77};
        CodecPair ends(settings, shape, storage);
        std::mt19937 random(12);
        std::vector<float> x;
        for (int visit = 0; visit < 5; ++visit) {  // cross() compares both ends' records
          x = drifting(visit, shape.tokens, shape.channels, random, x);
          ends.cross(x);
        }
      }
}

TEST_CASE("a receiver of coded values with error feedback need not count visits",
          "[codec][entropy]") {
  const auto scale = GENERATE(ScaleKind::tile, ScaleKind::message);
  CodecSettings settings = coded(CodecKind::directq, 3, scale, 1.0);
  settings.error_feedback = true;
  const CodecShape shape{3, 40, 96};
  const auto sender = make_codec(settings, shape, MemoryStorage::fp32);
  const auto receiver = make_codec(settings, shape, MemoryStorage::fp32);
  const std::size_t record = sender->record().bytes(BoundarySide::sender);
  const DeviceBytes pool("deltapipe::Test::pool", 3 * record);
  const DeviceBytes payload("deltapipe::Test::payload", sender->max_payload_bytes());
  const Activations x("deltapipe::Test::x", 120, 96), seen("deltapipe::Test::seen", 120, 96);
  const auto host = Kokkos::create_mirror_view(x);
  std::mt19937 random(14);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < host.size(); ++i) host.data()[i] = normal(random);
  Kokkos::deep_copy(x, host);
  Crossing crossing;
  crossing.sample_ids = {1, 2, 3};
  crossing.tokens = {40, 17, 40};
  crossing.visits = {0, 3, 1};
  const std::size_t bytes =
      sender->encode(ExecSpace(), crossing, x, {pool, {0, record, 2 * record}}, payload);
  CHECK(bytes < sender->payload_bytes(crossing) / 2);
  crossing.visits = {0, 0, 0};
  receiver->decode(ExecSpace(), crossing, payload, bytes, {}, seen);
  Kokkos::fence();
  const auto got = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), seen);
  for (int row = 0; row < 120; ++row)
    for (int c = 0; c < 96; ++c) {
      const bool valid = row % 40 < crossing.tokens[row / 40];
      const float sent = valid ? host(row, c) : 0.0f;
      // Steps of an RMS of about 1; all errors of former visits are 0.
      REQUIRE(std::abs(got(row, c) - sent) <= (valid ? 0.9f : 0.0f));
    }
}

TEST_CASE("a damaged coded payload changes nothing", "[codec][entropy]") {
  const CodecSettings settings =
      coded(CodecKind::aqsgd, 4, ScaleKind::tile, 0.0, FirstVisit::quantize8);
  const CodecShape shape{1, 20, 60};
  CodecPair ends(settings, shape, MemoryStorage::fp16);
  std::mt19937 random(13);
  std::vector<float> x = drifting(0, shape.tokens, shape.channels, random, {});
  ends.cross(x);
  x = drifting(1, shape.tokens, shape.channels, random, x);
  auto host = Kokkos::create_mirror_view(ends.sent);
  std::copy(x.begin(), x.end(), host.data());
  Kokkos::deep_copy(ends.sent, host);
  const std::size_t bytes = ends.sender->encode(ExecSpace(), ends.visit, ends.sent,
                                                ends.records(ends.near), ends.payload);
  const auto bytes_of = [](const DeviceBytes& view) {
    const auto copy = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
    return Bytes(copy.data(), copy.data() + copy.size());
  };
  const auto set_bytes = [](const DeviceBytes& view, const Bytes& values) {
    const auto copy = Kokkos::create_mirror_view(view);
    std::copy(values.begin(), values.end(), copy.data());
    Kokkos::deep_copy(view, copy);
  };
  const Bytes whole = bytes_of(ends.payload), before = bytes_of(ends.far);
  int undecodable = 0, wrong_length = 0;
  const auto attempt = [&](std::size_t size) {
    Kokkos::deep_copy(ends.received, 77.0f);
    try {
      ends.receiver->decode(ExecSpace(), ends.visit, ends.payload, size, ends.records(ends.far),
                            ends.received);
    } catch (const UserError& error) {
      const std::string what = error.what();
      CHECK_THAT(what, Catch::Contains("boundary 0 forward, step 1, micro-batch 0"));
      undecodable += what.find("do not decode") != std::string::npos;
      wrong_length += what.find("wrong length") != std::string::npos;
      const auto seen = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), ends.received);
      for (std::size_t i = 0; i < seen.size(); ++i) REQUIRE(seen.data()[i] == 77.0f);
      REQUIRE(bytes_of(ends.far) == before);
      return;
    }
    Kokkos::fence();
    set_bytes(ends.far, before);  // accepted as other codes
  };
  for (std::size_t size = 0; size < bytes; size += 3) attempt(size);
  const std::size_t tail = 20 * 3 * 2;  // steps of 24, 24 and 12 channels
  for (std::size_t i = tail; i < bytes; i += 2) {
    Bytes other = whole;
    other[i] ^= 0x10;
    set_bytes(ends.payload, other);
    attempt(bytes);
  }
  CHECK(undecodable > 50);
  CHECK(wrong_length > 50);
}

TEST_CASE("zero, tiny, huge, constant and non-finite values cross coded as they do packed",
          "[codec][entropy]") {
  const double rms_step = GENERATE(0.0, 1.0);
  const auto kind = GENERATE(CodecKind::directq, CodecKind::aqsgd);
  const bool feedback = GENERATE(false, true);
  if (feedback && kind == CodecKind::aqsgd) return;
  CodecSettings settings = coded(kind, 4, ScaleKind::tile, rms_step, FirstVisit::fp32);
  settings.error_feedback = feedback;
  const int channels = 60;
  const auto seen_of = [&](const std::vector<float>& row) {
    CodecPair ends(settings, {1, 1, channels}, MemoryStorage::fp32);
    if (kind == CodecKind::aqsgd) ends.cross(std::vector<float>(channels, 0.0f));
    return ends.cross(row);
  };
  const std::vector<float> zeros(channels, 0.0f);
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(seen_of(zeros) == zeros);
  CHECK(seen_of(std::vector<float>(channels, 1e-44f)) == zeros);
  CHECK(seen_of(std::vector<float>(channels, inf)) == zeros);
  CHECK(seen_of(std::vector<float>(channels, std::nanf(""))) == zeros);
  for (const float value : seen_of(std::vector<float>(channels, -0.75f)))
    CHECK(value == Approx(-0.75f).epsilon(0x1p-7));
  std::vector<float> x(channels, 0.0f);
  for (int c = 0; c < channels; ++c) x[c] = c % 2 == 0 ? 3.4e38f : -3.4028234e38f;
  for (const float value : seen_of(x)) {
    CHECK(std::isfinite(value));
    CHECK(std::abs(value) >= 1.5e38f);
  }
  for (const float size : {1e-36f, 1e-20f, 1e20f, 1e37f}) {
    for (int c = 0; c < channels; ++c) x[c] = size * static_cast<float>(c % 7 - 3);
    const std::vector<float> seen = seen_of(x);
    for (int c = 0; c < channels; ++c) CHECK(std::abs(seen[c] - x[c]) <= 1.1f * size);
  }
  x.assign(channels, 1.0f);
  x[3] = inf;
  x[4] = -inf;
  x[5] = std::nanf("");
  const std::vector<float> seen = seen_of(x);
  for (int c = 0; c < channels; ++c) {
    CHECK(std::isfinite(seen[c]));
    if (c < 3 || c > 5) CHECK(seen[c] == Approx(1.0f).epsilon(0.15));
  }
  CHECK(seen[3] > 0.9f);
  CHECK(seen[4] < -0.9f);
  CHECK(seen[5] == 0);
}

TEST_CASE("contradictory settings of entropy coding and steps are refused", "[codec][entropy]") {
  const auto refused = [](CodecSettings settings, const char* remedy) {
    CHECK_THROWS_WITH(make_codec(settings, {1, 1, 8}, MemoryStorage::fp16),
                      Catch::Contains(remedy));
  };
  CodecSettings settings = coded(CodecKind::aqsgd, 3, ScaleKind::tile, 1.0);
  CHECK_NOTHROW(make_codec(settings, {1, 1, 8}, MemoryStorage::fp16));
  settings = coded(CodecKind::directq, 3, ScaleKind::channel, 1.0);
  refused(settings, "scale = \"tile\"");
  settings = coded(CodecKind::directq, 3, ScaleKind::tile, 1.0);
  settings.levels = Levels::asymmetric;
  refused(settings, "symmetric");
  settings = coded(CodecKind::aqsgd, 3, ScaleKind::tile, 1.0);
  settings.kind = CodecKind::fp16;
  settings.entropy_coding = true;
  refused(settings, "entropy_coding = false");
  settings = coded(CodecKind::aqsgd, 3, ScaleKind::tile, 1.0);
  for (const double step : {0.001, -1.0, 2.51, 17.0, std::nan("")}) {
    settings.rms_step = step;
    refused(settings, "0.01 to 2.5");
  }
  settings.rms_step = 1.91;
  settings.rounding = Rounding::stochastic;
  refused(settings, "a step up to 1.9");
}

namespace {

/// Folds a row, or unfolds it, in place.
Bytes folded(const codec::Folding& folding, int n, Bytes row, bool inverse) {
  DeviceBytes bytes("deltapipe::Test::row", row.size());
  const auto host = Kokkos::create_mirror_view(bytes);
  std::copy(row.begin(), row.end(), host.data());
  Kokkos::deep_copy(bytes, host);
  std::uint8_t* const codes = bytes.data();
  for_rows(
      "deltapipe::Test::fold", row_policy(ExecSpace(), 1), DELTAPIPE_LAMBDA(const RowMember& team) {
        if (inverse)
          codec::unfold_row(team, folding, n, codes);
        else
          codec::fold_row(team, folding, n, codes);
      });
  Kokkos::deep_copy(host, bytes);
  return {host.data(), host.data() + row.size()};
}

}  // namespace

TEST_CASE("symbols are numbers whose digits are codes", "[codec][entropy]") {
  const codec::Folding folding =
      GENERATE(codec::Folding{0, 256, 1}, codec::Folding{5, 1, 1}, codec::Folding{0, 16, 2},
               codec::Folding{240, 16, 2}, codec::Folding{3, 7, 2}, codec::Folding{9, 1, 4},
               codec::Folding{0, 4, 4}, codec::Folding{1, 3, 4}, codec::Folding{254, 2, 4});
  REQUIRE(folding.is_valid());
  const int n = GENERATE(1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 255);
  Bytes codes(static_cast<std::size_t>(8 * codec::lanes_of(n)), 0);
  std::mt19937 random(static_cast<unsigned>(n));
  for (int c = 0; c < n; ++c)
    codes[c] = static_cast<std::uint8_t>(folding.first + random() % folding.range);
  codes[0] = static_cast<std::uint8_t>(folding.first + folding.range - 1);

  const int symbols = folding.row_symbols(n);
  Bytes expected(symbols);
  for (int i = 0; i < symbols; ++i) {
    int number = 0;
    for (int k = 0, power = 1; k < folding.codes; ++k, power *= folding.range)
      if (i + k * symbols < n) number += power * (codes[i + k * symbols] - folding.first);
    expected[i] = static_cast<std::uint8_t>(number);
  }
  Bytes row = folded(folding, n, codes, false);
  CHECK(Bytes(row.begin(), row.begin() + symbols) == expected);
  CHECK(folded(folding, n, std::move(row), true) == codes);
}
