// SPDX-License-Identifier: BSD-3-Clause
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/numeric/number_formats.hpp"
#include "core/codec/codec.hpp"

using namespace deltapipe;

namespace {

Crossing visit_of(std::vector<int> tokens) {
  Crossing visit;
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    visit.sample_ids.push_back(100 + b);
    visit.visits.push_back(0);
  }
  visit.tokens = std::move(tokens);
  return visit;
}

/// Finds the nearest half by a search over all finite ones; ties to the even mantissa.
double nearest_half(double x) {
  double best = 0;
  double distance = INFINITY;
  for (int exponent = -24; exponent <= 5; ++exponent) {
    const double unit = std::ldexp(1.0, exponent);
    const double count = std::nearbyint(std::abs(x) / unit);
    if (count > 2047 || (count == 0 && exponent > -24)) continue;
    if (std::abs(count * unit - std::abs(x)) < distance) {
      distance = std::abs(count * unit - std::abs(x));
      best = count * unit;
    }
  }
  return std::copysign(best, x);
}

}  // namespace

TEST_CASE("every half survives the way to float and back") {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto stored = static_cast<std::uint16_t>(bits);
    const float x = float_of_half(stored);
    const int exponent = (bits >> 10) & 31;
    const int mantissa = bits & 1023;
    if (exponent == 31) {
      CHECK(std::isinf(x) == (mantissa == 0));
      CHECK(std::isnan(x) == (mantissa != 0));
      const std::uint16_t quiet = mantissa != 0 ? stored | 0x200 : stored;
      REQUIRE(half_of(x) == quiet);
      continue;
    }
    const double value =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    REQUIRE(x == static_cast<float>(bits & 0x8000 ? -value : value));
    REQUIRE(half_of(x) == stored);
  }
}

TEST_CASE("float to half rounds to nearest even and overflows at 65520") {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-26, 15.9f), mantissa(-1, 1);
  for (int i = 0; i < 100000; ++i) {
    const float x = mantissa(random) * std::exp2(exponent(random));
    REQUIRE(float_of_half(half_of(x)) == static_cast<float>(nearest_half(x)));
  }
  CHECK(half_of(65519.996f) == 0x7bff);
  CHECK(half_of(-65520.0f) == 0xfc00);
  CHECK(half_of(1.0f + 0x1p-11f) == 0x3c00);  // tie to even
  CHECK(half_of(1.0f + 0x3p-11f) == 0x3c02);  // tie to even
  CHECK(half_of(0x1p-25f) == 0);              // tie to even
  CHECK(half_of(0x1.8p-24f) == 2);            // tie to even
  CHECK(half_of(std::numeric_limits<float>::infinity()) == 0x7c00);
}

TEST_CASE("float to bfloat rounds to nearest even") {
  CHECK(bfloat_of(1.0f) == 0x3f80);
  CHECK(bfloat_of(1.0f + 0x1p-8f) == 0x3f80);
  CHECK(bfloat_of(1.0f + 0x3p-8f) == 0x3f82);
  CHECK(bfloat_of(-1.0f - 0x1.2p-8f) == 0xbf81);
  CHECK(bfloat_of(3.4e38f) == 0x7f80);
  CHECK(bfloat_of(std::numeric_limits<float>::infinity()) == 0x7f80);
  CHECK(std::isnan(float_of_bfloat(bfloat_of(std::nanf("")))));
  const float low_payload_nan = float_of(0x7f800001u);
  CHECK(std::isnan(float_of_bfloat(bfloat_of(low_payload_nan))));
}

TEST_CASE("dense codecs send valid rows and no padding") {
  const CodecKind kind = GENERATE(CodecKind::none, CodecKind::fp16, CodecKind::bf16);
  const CodecShape shape{3, 5, 13};
  const std::size_t row_bytes = kind == CodecKind::none   ? 4 * 13
                                : kind == CodecKind::fp16 ? 28
                                                          : 26;
  CodecSettings settings;
  settings.kind = kind;
  const auto codec = make_codec(settings, shape, MemoryStorage::fp16);
  const ExecSpace exec;
  Activations sent("test::sent", 15, 13), received("test::received", 15, 13);
  auto host = Kokkos::create_mirror_view(sent);
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 3);
  for (int row = 0; row < 15; ++row)
    for (int c = 0; c < 13; ++c) host(row, c) = normal(random);
  const Crossing visit = visit_of({4, 0});  // an incomplete micro-batch
  host(4, 0) = std::nanf("");               // padding
  host(1, 3) = std::nanf("");
  host(2, 7) = std::numeric_limits<float>::infinity();
  Kokkos::deep_copy(sent, host);
  Kokkos::deep_copy(received, 7.0f);
  DeviceBytes payload("test::payload", codec->max_payload_bytes());
  codec->measure_errors(true);
  const std::size_t bytes = codec->encode(exec, visit, sent, {}, payload);
  CHECK(bytes == codec->payload_bytes(visit));
  CHECK(bytes == 4 * row_bytes);
  codec->decode(exec, visit, payload, bytes, {}, received);
  exec.fence();
  auto result = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), received);
  double error2 = 0, signal2 = 0;
  for (int row = 0; row < 15; ++row)
    for (int c = 0; c < 13; ++c) {
      float expected = row < 4 ? host(row, c) : 0.0f;
      // None of these is below fp16's normal numbers: a scale changes no rounding.
      if (kind == CodecKind::fp16) expected = float_of_half(half_of(expected));
      if (kind == CodecKind::bf16) expected = float_of_bfloat(bfloat_of(expected));
      if (std::isnan(expected)) {
        CHECK(std::isnan(result(row, c)));
        continue;
      }
      REQUIRE(result(row, c) == expected);
      if (row >= 4 || std::isinf(expected)) continue;
      error2 += std::pow(double{host(row, c)} - expected, 2);
      signal2 += std::pow(double{host(row, c)}, 2);
    }
  const CodecStatistics statistics = codec->take_statistics(exec);
  CHECK(statistics.nonfinite == 2);
  CHECK(statistics.elements == 52);
  CHECK(statistics.error2 == Approx(error2).epsilon(1e-5));
  CHECK(statistics.signal2 == Approx(signal2).epsilon(1e-5));
  CHECK(codec->take_statistics(exec).elements == 0);
  CHECK_THROWS_AS(codec->decode(exec, visit, payload, bytes - 1, {}, received), UserError);
}

TEST_CASE("the fp16 codec is exact for all values of fp16 and never out of range") {
  CodecSettings settings;
  settings.kind = CodecKind::fp16;
  const int channels = 24, rows = 12;
  const auto codec = make_codec(settings, {1, rows, channels}, MemoryStorage::fp16);
  Activations sent("test::sent", rows, channels), received("test::received", rows, channels);
  auto host = Kokkos::create_mirror_view(sent);
  // Rows 0 to 3: halves of all magnitudes side by side, with the largest and the smallest ones.
  // Others: one magnitude per row, from 2^-140 to 2^127; the last row holds only infinities.
  std::mt19937 random(3);
  std::uniform_int_distribution<int> half_bits(0, 0x7bff);
  std::uniform_real_distribution<float> mantissa(1, 2);
  const int exponents[] = {-140, -126, -110, -30, 17, 90, 127};
  for (int t = 0; t < rows; ++t)
    for (int c = 0; c < channels; ++c) {
      const float sign = c % 2 == 0 ? 1.0f : -1.0f;
      if (t < 4)
        host(t, c) = sign * float_of_half(static_cast<std::uint16_t>(half_bits(random)));
      else if (t < 11)
        host(t, c) = sign * std::ldexp(mantissa(random), exponents[t - 4] - c % 4);
      else
        host(t, c) = sign * std::numeric_limits<float>::infinity();
    }
  host(0, 5) = 65504.0f;
  host(0, 6) = 0x1p-24f;
  host(1, 5) = 0x1p-24f;
  host(2, 0) = 0.0f;
  host(3, 9) = -0x1.ffcp-3f;
  Kokkos::deep_copy(sent, host);
  DeviceBytes payload("test::payload", codec->max_payload_bytes());
  const Crossing visit = visit_of({rows});
  const std::size_t bytes = codec->encode(ExecSpace(), visit, sent, {}, payload);
  codec->decode(ExecSpace(), visit, payload, bytes, {}, received);
  Kokkos::fence();
  const auto seen = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), received);
  for (int t = 0; t < rows; ++t)
    for (int c = 0; c < channels; ++c) {
      const double x = host(t, c);
      INFO(t << ", " << c << ": " << x);
      if (t < 4 || t == 11)
        REQUIRE(seen(t, c) == host(t, c));
      else  // fp32's subnormal numbers have fewer bits
        REQUIRE(std::abs(seen(t, c) - x) <= std::max(std::abs(x) * 0x1p-11, 0x1p-149));
    }
}

TEST_CASE("warm-up sends fp32 until its epochs are over") {
  CodecSettings settings;
  settings.kind = CodecKind::fp16;
  settings.warmup_epochs = 1;
  const auto codec = make_codec(settings, {2, 3, 8}, MemoryStorage::fp16);
  Crossing visit = visit_of({3, 3});
  visit.epoch = 0.99;
  CHECK(codec->payload_bytes(visit) == 6 * 8 * 4);
  CHECK(codec->max_payload_bytes() == 6 * 8 * 4);
  visit.epoch = 1;
  CHECK(codec->payload_bytes(visit) == 2 * 56);  // 3 rows of 18 bytes, rounded up to 4
  settings.warmup_epochs = 2;
  CHECK(codec->id() != make_codec(settings, {2, 3, 8}, MemoryStorage::fp16)->id());
}

TEST_CASE("codec settings out of range are user errors") {
  const CodecShape shape{1, 1, 1};
  CodecSettings settings;
  settings.bits = GENERATE(0, 9);
  CHECK_THROWS_AS(make_codec(settings, shape, MemoryStorage::fp16), UserError);
  settings = {};
  settings.tile = 0;
  CHECK_THROWS_AS(make_codec(settings, shape, MemoryStorage::fp16), UserError);
  settings = {};
  settings.warmup_epochs = GENERATE(-1.0, std::nan(""));
  CHECK_THROWS_AS(make_codec(settings, shape, MemoryStorage::fp16), UserError);
}
