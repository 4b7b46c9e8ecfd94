// SPDX-License-Identifier: BSD-3-Clause
// fp32 without rows of zeros: the payload against one built by hand, and what is refused.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/base/error.hpp"
#include "core/codec/codec.hpp"

using namespace deltapipe;

namespace {

constexpr int kChannels = 7;
using Bytes = std::vector<std::uint8_t>;

Crossing crossing_of(const std::vector<int>& tokens) {
  Crossing crossing;
  crossing.boundary = 3;
  crossing.step = 11;
  crossing.micro_batch = 2;
  crossing.tokens = tokens;
  for (std::size_t b = 0; b < tokens.size(); ++b) crossing.sample_ids.push_back(b);
  crossing.visits.assign(tokens.size(), 0);
  return crossing;
}

struct Ends {
  explicit Ends(const CodecShape& shape)
      : codec(make_codec(settings(), shape, MemoryStorage::fp16)),
        x("deltapipe::Test::x", shape.max_samples * shape.tokens, shape.channels),
        payload("deltapipe::Test::payload", codec->max_payload_bytes()) {}
  static CodecSettings settings() {
    CodecSettings settings;
    settings.kind = CodecKind::row_sparse;
    return settings;
  }

  Bytes encode(const Crossing& crossing, const std::vector<float>& values) {
    const auto host = Kokkos::create_mirror_view(x);
    std::copy(values.begin(), values.end(), host.data());
    Kokkos::deep_copy(x, host);
    Kokkos::deep_copy(payload, std::uint8_t{0xa5});
    const std::size_t bytes = codec->encode(ExecSpace(), crossing, x, {}, payload);
    REQUIRE(bytes <= codec->payload_bytes(crossing));
    Kokkos::fence();
    const auto sent = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), payload);
    return {sent.data(), sent.data() + bytes};
  }

  std::vector<float> decode(const Crossing& crossing, const Bytes& bytes) {
    const auto host = Kokkos::create_mirror_view(payload);
    std::copy_n(bytes.begin(), std::min(bytes.size(), host.size()), host.data());
    Kokkos::deep_copy(payload, host);
    Kokkos::deep_copy(x, 77.0f);
    codec->decode(ExecSpace(), crossing, payload, bytes.size(), {}, x);
    Kokkos::fence();
    const auto seen = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x);
    return {seen.data(), seen.data() + seen.size()};
  }

  std::unique_ptr<Codec> codec;
  Activations x;
  DeviceBytes payload;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Bitmap of the valid rows in whole words, then the rows with a bit that is set.
Bytes expected_payload(const CodecShape& shape, const std::vector<int>& tokens,
                       const std::vector<float>& x) {
  std::vector<const float*> rows;
  for (std::size_t b = 0; b < tokens.size(); ++b)
    for (int t = 0; t < tokens[b]; ++t)
      rows.push_back(x.data() + (b * shape.tokens + t) * shape.channels);
  const std::size_t row_bytes = sizeof(float) * shape.channels;
  const Bytes zeros(row_bytes, 0);
  Bytes payload((rows.size() + 31) / 32 * 4, 0);
  for (std::size_t n = 0; n < rows.size(); ++n) {
    if (std::memcmp(rows[n], zeros.data(), row_bytes) == 0) continue;
    payload[n / 8] |= static_cast<std::uint8_t>(1u << n % 8);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(rows[n]);
    payload.insert(payload.end(), bytes, bytes + row_bytes);
  }
  return payload;
}

/// Values of all rows, some rows zero; padding is NaN.
std::vector<float> values_of(const CodecShape& shape, const std::vector<int>& tokens, double zeros,
                             unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::bernoulli_distribution is_zero(zeros);
  std::vector<float> x(static_cast<std::size_t>(shape.max_samples) * shape.tokens * shape.channels,
                       std::nanf(""));
  for (std::size_t b = 0; b < tokens.size(); ++b)
    for (int t = 0; t < tokens[b]; ++t) {
      const bool zero = is_zero(random);
      for (int c = 0; c < shape.channels; ++c)
        x[(b * shape.tokens + t) * shape.channels + c] = zero ? 0.0f : normal(random);
    }
  return x;
}

std::vector<float> padded_with_zeros(const CodecShape& shape, const std::vector<int>& tokens,
                                     std::vector<float> x) {
  for (int row = 0; row < shape.max_samples * shape.tokens; ++row) {
    const std::size_t b = row / shape.tokens;
    if (b >= tokens.size() || row % shape.tokens >= tokens[b])
      std::fill_n(x.begin() + row * shape.channels, shape.channels, 0.0f);
  }
  return x;
}

}  // namespace

TEST_CASE("row_sparse sends a bitmap and the rows that are not zero", "[codec][row_sparse]") {
  struct Case {
    CodecShape shape;
    std::vector<int> tokens;
  };
  const auto test =
      GENERATE(Case{{3, 5, kChannels}, {4, 0, 3}}, Case{{1, 1, 1}, {1}},
               Case{{2, 16, kChannels}, {16, 16}}, Case{{3, 70, 5}, {70, 1, 33}},
               Case{{2, 3, 4}, {}}, Case{{2, 3, 4}, {0, 0}}, Case{{3, 11, 33}, {11, 11, 11}});
  const double zeros = GENERATE(0.0, 0.4, 1.0);
  CAPTURE(test.tokens, zeros);
  const Crossing crossing = crossing_of(test.tokens);
  Ends ends(test.shape);
  const std::vector<float> x = values_of(test.shape, test.tokens, zeros, 5);
  const Bytes payload = ends.encode(crossing, x);
  CHECK(payload == expected_payload(test.shape, test.tokens, x));
  CHECK(same_bits(ends.decode(crossing, payload), padded_with_zeros(test.shape, test.tokens, x)));
}

TEST_CASE("row_sparse gives back every bit", "[codec][row_sparse]") {
  const CodecShape shape{1, 8, 3};
  Ends ends(shape);
  std::vector<float> x(24, 0.0f);
  x[3] = -0.0f;
  x[8] = std::nanf("5");
  x[9] = std::numeric_limits<float>::denorm_min();
  x[17] = -std::numeric_limits<float>::infinity();
  const Crossing crossing = crossing_of({8});
  ends.codec->measure_errors(true);
  const Bytes payload = ends.encode(crossing, x);
  CHECK(payload.size() == 4 + 4 * 12);
  CHECK(same_bits(ends.decode(crossing, payload), x));
  const CodecStatistics sums = ends.codec->take_statistics(ExecSpace());
  CHECK(sums.nonfinite == 2);
  CHECK(sums.elements == 24);
  CHECK(sums.error2 == 0);
}

TEST_CASE("row_sparse refuses what is not its payload and leaves the rows alone",
          "[codec][row_sparse]") {
  const CodecShape shape{2, 20, kChannels};
  const std::vector<int> tokens = {20, 15};
  Ends ends(shape);
  const Crossing crossing = crossing_of(tokens);
  const Bytes whole = ends.encode(crossing, values_of(shape, tokens, 0.5, 9));
  const auto refused = [&](const Bytes& bytes) {
    CHECK_THROWS_WITH(ends.decode(crossing, bytes),
                      Catch::Contains("boundary 3 forward, step 11, micro-batch 2") &&
                          Catch::Contains("wrong length"));
    const auto rows = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), ends.x);
    CHECK(rows(0, 0) == 77.0f);
  };
  for (std::size_t size = 0; size < whole.size(); size += 3)
    refused({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)});
  Bytes other = whole;
  other.resize(whole.size() + 4 * kChannels);
  refused(other);
  other.resize(100000);
  refused(other);
  for (int n = 0; n < 64; ++n) {  // bits without a row among them
    other = whole;
    other[n / 8] ^= static_cast<std::uint8_t>(1u << n % 8);
    refused(other);
  }
  other = whole;  // one of the rows has gone to a bit without a row
  for (int n = 0; n < 35; ++n)
    if (other[n / 8] >> n % 8 & 1) {
      other[n / 8] ^= static_cast<std::uint8_t>(1u << n % 8);
      break;
    }
  other[7] |= 0x80;
  refused(other);
  CHECK_NOTHROW(ends.decode(crossing, whole));
}

TEST_CASE("row_sparse is exact: it has no warm-up", "[codec][row_sparse]") {
  CodecSettings settings = Ends::settings();
  settings.warmup_epochs = 2;
  const CodecShape shape{2, 3, 4};
  const auto codec = make_codec(settings, shape, MemoryStorage::fp16);
  CHECK(codec->id() == Ends(shape).codec->id());
  CHECK(codec->payload_bytes(crossing_of({3, 2})) == 4 + 5 * 16);
  CHECK(codec->max_payload_bytes() == 4 + 6 * 16);
  CHECK(codec->record() == RecordLayout{});
}
