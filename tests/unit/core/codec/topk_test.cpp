// SPDX-License-Identifier: BSD-3-Clause
// TopK compared with plain references: chosen values, their bytes, and what is refused.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "core/base/error.hpp"
#include "core/codec/codec.hpp"
#include "core/codec/settings_check.hpp"
#include "support/codec_link.hpp"
#include "support/codec_reference.hpp"
#include "support/topk_reference.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

using Bytes = std::vector<std::uint8_t>;
using Fill = std::function<float(std::mt19937&, std::size_t)>;

CodecSettings topk(double part, ChosenValues values = ChosenValues::fp32) {
  CodecSettings settings;
  settings.kind = CodecKind::topk;
  settings.topk = part;
  settings.values = values;
  return settings;
}

const float kInfinity = std::numeric_limits<float>::infinity();

float normal(std::mt19937& random, std::size_t) {
  return std::normal_distribution<float>()(random);
}

struct Content {
  const char* name;
  Fill value;
};

const std::vector<Content>& contents() {
  static const std::vector<Content> all = {
      {"normal", normal},
      {"five levels",
       [](std::mt19937& random, std::size_t) {
         return static_cast<float>(static_cast<int>(random() % 5) - 2);
       }},
      {"constant", [](std::mt19937&, std::size_t) { return -0.25f; }},
      {"zeros", [](std::mt19937&, std::size_t i) { return i % 2 == 0 ? 0.0f : -0.0f; }},
      {"mostly zeros", [](std::mt19937& random,
                          std::size_t i) { return random() % 20 == 0 ? normal(random, i) : 0.0f; }},
      {"NaN and infinities",
       [](std::mt19937& random, std::size_t i) {
         const auto kind = random() % 40;
         if (kind == 0) return std::nanf("");
         if (kind == 1) return kInfinity;
         return kind == 2 ? -kInfinity : normal(random, i);
       }},
      {"all sizes",
       [](std::mt19937& random, std::size_t) {
         float x;
         const std::uint32_t bits = (random() & 0x807fffffu) | (random() % 255 << 23);
         std::memcpy(&x, &bits, sizeof x);
         return x;
       }},
      {"smallest and largest",
       [](std::mt19937& random, std::size_t) {
         const float largest = std::numeric_limits<float>::max();
         const float smallest = std::numeric_limits<float>::denorm_min();
         return random() % 2 == 0 ? largest : random() % 2 == 0 ? -smallest : smallest;
       }},
      {"one bit apart",
       [](std::mt19937& random, std::size_t) {
         float x;
         const std::uint32_t bits = 0x3f800000u + random() % 64;
         std::memcpy(&x, &bits, sizeof x);
         return x;
       }},
      {"clustered",
       [](std::mt19937& random, std::size_t i) {
         return normal(random, i) * (i / 97 % 20 == 3 ? 100.0f : 1.0f);
       }},
      // In large samples, the selection samples the first 256 of each 8,192 values.
      {"large where it samples",
       [](std::mt19937& random, std::size_t i) {
         return normal(random, i) * (i % 8192 < 256 ? 1000.0f : 1.0f);
       }},
      {"small where it samples",
       [](std::mt19937& random, std::size_t i) {
         return normal(random, i) * (i % 8192 < 256 ? 0.001f : 1.0f);
       }},
      {"zeros except where it samples",
       [](std::mt19937& random, std::size_t i) {
         return i % 8192 < 256 ? normal(random, i) : 0.0f;
       }},
      {"zeros where it samples",
       [](std::mt19937& random, std::size_t i) {
         return i % 8192 < 256 ? 0.0f : normal(random, i);
       }},
  };
  return all;
}

struct Case {
  CodecShape shape;
  std::vector<int> tokens;
};

/// Returns cases of odd sizes, one value, absent and short samples, and more values than one team
/// processes.
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{1, 1, 1}, {1}},    {{1, 1, 2}, {1}},        {{3, 5, 7}, {4, 0, 3}},     {{2, 3, 4}, {}},
      {{2, 3, 4}, {0, 0}}, {{2, 33, 31}, {33, 32}}, {{2, 300, 257}, {300, 255}}};
  return all;
}

std::vector<std::uint64_t> ids_of(const std::vector<int>& tokens) {
  std::vector<std::uint64_t> ids;
  for (std::size_t b = 0; b < tokens.size(); ++b) ids.push_back(b);
  return ids;
}

/// Returns all rows; padding is NaN.
std::vector<float> rows_of(const Case& test, const Fill& value, unsigned seed) {
  std::mt19937 random(seed);
  const std::size_t row = test.shape.channels;
  std::vector<float> x(test.shape.max_samples * test.shape.tokens * row, std::nanf(""));
  for (std::size_t b = 0; b < test.tokens.size(); ++b)
    for (std::size_t i = 0; i < test.tokens[b] * row; ++i)
      x[b * test.shape.tokens * row + i] = value(random, i);
  return x;
}

std::vector<float> sample_of(const Case& test, const std::vector<float>& x, std::size_t b) {
  const std::size_t row = test.shape.channels;
  const auto first = x.begin() + static_cast<std::ptrdiff_t>(b * test.shape.tokens * row);
  return {first, first + static_cast<std::ptrdiff_t>(test.tokens[b] * row)};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("topk sends the values of largest magnitude", "[codec][topk]") {
  const double part = GENERATE(1.0, 0.5, 0.1, 0.02, 0.005);
  for (const Case& test : cases()) {
    CodecLink link(topk(part), test.shape, MemoryStorage::fp16);
    for (const Content& content : contents()) {
      CAPTURE(part, test.tokens, test.shape.channels, content.name);
      const std::vector<float> x = rows_of(test, content.value, 3);
      const std::vector<float> seen = link.cross(ids_of(test.tokens), test.tokens, x);
      std::vector<float> expected(x.size());
      for (std::size_t b = 0; b < test.tokens.size(); ++b) {
        const std::vector<float> sample = sample_of(test, x, b);
        const std::vector<float> sparse = naive_sparse(sample, naive_k(part, sample.size()));
        std::copy(sparse.begin(), sparse.end(),
                  expected.begin() +
                      static_cast<std::ptrdiff_t>(b * test.shape.tokens * test.shape.channels));
      }
      CHECK(same_bits(seen, expected));
    }
  }
}

TEST_CASE("positions are sent in the shortest of their formats", "[codec][topk]") {
  std::set<int> formats;
  for (const double part : {1.0, 0.6, 0.3, 0.1, 0.02, 0.005, 0.0001})
    for (const Case& test : cases()) {
      if (test.tokens.empty() || test.tokens[0] == 0) continue;
      CodecLink link(topk(part), test.shape, MemoryStorage::fp16);
      for (const Content& content : contents()) {
        CAPTURE(part, test.tokens, test.shape.channels, content.name);
        const std::vector<float> x = rows_of(test, content.value, 4);
        link.cross(ids_of(test.tokens), test.tokens, x);
        std::size_t at = 12 * test.tokens.size();
        for (std::size_t b = 0; b < test.tokens.size(); ++b) {
          const std::vector<float> sample = sample_of(test, x, b);
          const auto chosen = naive_topk(sample, naive_k(part, sample.size()));
          const auto size = static_cast<std::uint32_t>(sample.size());
          const TopKHeader header = header_at(link.sent_bytes, b);
          REQUIRE(header.count == chosen.size());
          REQUIRE(naive_positions(header, link.sent_bytes.data() + at, size) == chosen);
          const PositionWords words = position_words(chosen, size);
          REQUIRE(header.words == words.least());
          REQUIRE(header.exponent == 0);
          if (size > 0) formats.insert(header.format);
          at += 4 * header.words + 4 * header.count;
        }
        REQUIRE(at == link.sent_bytes.size());
      }
    }
  CHECK(formats == std::set<int>{0, 1, 2, 3});
}

TEST_CASE("topk's values in 16 bits share a power of two", "[codec][topk]") {
  const float size = GENERATE(1.0f, 1e-30f, 1e30f);
  const Case test{{1, 40, 31}, {40}};
  CodecLink link(topk(0.3, ChosenValues::fp16), test.shape, MemoryStorage::fp16);
  std::vector<float> x = rows_of(test, normal, 8);
  for (float& value : x) value *= size;
  x[7] = std::nanf("");
  x[11] = kInfinity;
  const std::vector<float> seen = link.cross({0}, {40}, x);
  const std::vector<float> sparse = naive_sparse(x, naive_k(0.3, x.size()));
  const int exponent = header_at(link.sent_bytes, 0).exponent;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i == 11)
      CHECK(seen[i] == std::ldexp(65504.0f, -exponent));
    else
      CHECK(std::abs(seen[i] - sparse[i]) <= 0x1p-11 * std::abs(sparse[i]));
  }
  const TopKHeader header = header_at(link.sent_bytes, 0);
  CHECK(link.sent_bytes.size() == 12 + 4 * header.words + (2 * header.count + 3) / 4 * 4);
  float largest = 0;
  for (const float value : seen)
    if (value != seen[11]) largest = std::max(largest, std::abs(value));
  CHECK(std::ldexp(largest, exponent) >= 65504 / 2);
}

TEST_CASE("topk's values as codes are quantised in their order", "[codec][topk]") {
  const int bits = GENERATE(2, 3, 4, 8);
  const auto levels = GENERATE(Levels::symmetric, Levels::asymmetric);
  const int tile = GENERATE(24, 64, 5000);
  CodecSettings settings = topk(0.25, ChosenValues::codes);
  settings.bits = bits;
  settings.levels = levels;
  settings.tile = tile;
  if (contradiction_in(settings)) return;
  INFO(describe(settings));
  const Case test{{1, 99, 61}, {99}};  // 1510 chosen: a row of codes and a part of one
  CodecLink link(settings, test.shape, MemoryStorage::fp16);
  std::vector<float> x = rows_of(test, normal, 8);
  x[100] = -kInfinity;
  const std::vector<float> seen = link.cross({0}, {99}, x);
  const auto chosen = naive_topk(x, naive_k(0.25, x.size()));
  REQUIRE(chosen.size() == 1510);
  std::size_t steps = 0, codes = 0;
  for (std::size_t row = 0; row < chosen.size(); row += 1024) {
    const std::size_t end = std::min(row + 1024, chosen.size());
    codes += static_cast<std::size_t>(bits) * ((end - row + 7) / 8);
    for (std::size_t first = row; first < end; first += static_cast<std::size_t>(tile), ++steps) {
      const std::size_t last = std::min(first + static_cast<std::size_t>(tile), end);
      std::vector<float> values, finite;
      for (std::size_t i = first; i < last; ++i) {
        values.push_back(x[chosen[i]]);
        finite.push_back(std::isfinite(values.back()) ? values.back() : 0.0f);
      }
      const float step = naive_quantize(finite, bits, levels).step;
      const std::vector<int> level = naive_levels(values, step, bits, levels);
      for (std::size_t i = first; i < last; ++i)
        REQUIRE(
            seen[chosen[i]] ==
            Approx(static_cast<float>(level[i - first]) * step).epsilon(bits == 1 ? 0x1p-7 : 0));
    }
  }
  const TopKHeader header = header_at(link.sent_bytes, 0);
  CHECK(link.sent_bytes.size() == 12 + 4 * header.words + (2 * steps + codes + 3) / 4 * 4);
}

TEST_CASE("random levels of topk's values are unbiased", "[codec][topk]") {
  CodecSettings settings = topk(0.5, ChosenValues::codes);
  settings.bits = 2;
  settings.rounding = Rounding::stochastic;
  const Case test{{1, 1, 4096}, {1}};
  CodecLink link(settings, test.shape, MemoryStorage::fp16);
  const std::vector<float> x = rows_of(test, normal, 5);
  const auto chosen = naive_topk(x, 2048);
  double sum = 0, sum2 = 0;
  constexpr int kVisits = 64;
  for (int visit = 0; visit < kVisits; ++visit) {
    const std::vector<float> seen = link.cross({0}, {1}, x);
    for (const std::uint32_t i : chosen) {
      const double error = std::copysign(1.0, x[i]) * (double{seen[i]} - x[i]);
      sum += error;
      sum2 += error * error;
    }
  }
  const double count = 2048.0 * kVisits;
  CHECK(std::abs(sum / count) < 5 * std::sqrt(sum2) / count);
}

TEST_CASE("an end of topk holds only what it uses", "[codec][topk]") {
  const auto kind = GENERATE(FeedbackKind::ef, FeedbackKind::ef21, FeedbackKind::mixed);
  CodecSettings settings = topk(0.1);
  settings.error_feedback = true;
  settings.feedback_kind = kind;
  const CodecShape shape{2, 50, 80};
  const std::size_t values = 2 * 50 * 80, chosen = values / 10;
  const auto bytes_of = [&](std::optional<BoundarySide> side, const CodecSettings& codec) {
    CodecShape end = shape;
    end.side = side;
    return make_codec(codec, end, MemoryStorage::fp16)->memory_bytes();
  };
  const std::size_t tables = bytes_of({}, {});  // codec none
  const std::size_t receiver = bytes_of(BoundarySide::receiver, settings) - tables;
  const std::size_t sender = bytes_of(BoundarySide::sender, settings) - tables;
  CHECK(receiver <= 8 * chosen + 256);
  CHECK(receiver >= 8 * chosen);  // positions and values
  CHECK(sender >= 12 * values);   // candidates, their keys, values to choose from
  CHECK(sender <= bytes_of({}, settings) - tables);
}

TEST_CASE("topk is a contraction", "[codec][topk]") {
  const double part = GENERATE(1.0, 0.5, 0.1, 0.02, 0.005);
  for (const Case& test : cases())
    for (const char* name : {"normal", "five levels", "constant", "mostly zeros", "clustered"}) {
      CAPTURE(part, test.tokens, name);
      const auto content =
          std::find_if(contents().begin(), contents().end(),
                       [&](const Content& c) { return std::string(c.name) == name; });
      CodecLink link(topk(part), test.shape, MemoryStorage::fp16);
      const std::vector<float> x = rows_of(test, content->value, 6);
      const std::vector<float> seen = link.cross(ids_of(test.tokens), test.tokens, x);
      for (std::size_t b = 0; b < test.tokens.size(); ++b) {
        const auto a = sample_of(test, x, b), c = sample_of(test, seen, b);
        double left = 0, all = 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
          left += std::pow(double{a[i]} - c[i], 2);
          all += std::pow(double{a[i]}, 2);
        }
        const double k = static_cast<double>(naive_k(part, a.size()));
        const double rest = a.empty() ? 0 : 1 - k / static_cast<double>(a.size());
        CHECK(left <= rest * all * (1 + 1e-12));
      }
    }
}

TEST_CASE("topk counts values that are not finite and sums its errors", "[codec][topk]") {
  const bool measures = GENERATE(false, true);
  const auto values = GENERATE(ChosenValues::fp32, ChosenValues::codes);
  const Case test{{2, 30, 33}, {30, 20}};
  CodecLink link(topk(0.2, values), test.shape, MemoryStorage::fp16);
  link.sender->measure_errors(measures);
  double error2 = 0, signal2 = 0;
  std::uint64_t nonfinite = 0;
  for (unsigned visit = 0; visit < 3; ++visit) {
    const std::vector<float> x = rows_of(test, contents()[5].value, visit);
    const std::vector<float> seen = link.cross({0, 1}, test.tokens, x);
    for (std::size_t b = 0; b < 2; ++b) {
      const auto a = sample_of(test, x, b), c = sample_of(test, seen, b);
      for (std::size_t i = 0; i < a.size(); ++i) {
        nonfinite += std::isfinite(a[i]) ? 0 : 1;
        if (!std::isfinite(a[i])) continue;
        error2 += std::pow(double{a[i]} - c[i], 2);
        signal2 += std::pow(double{a[i]}, 2);
      }
    }
  }
  const CodecStatistics sums = link.sender->take_statistics(ExecSpace());
  CHECK(sums.nonfinite == nonfinite);
  CHECK(nonfinite > 20);
  CHECK(sums.elements == (measures ? 3 * 50 * 33 : 0));
  CHECK(sums.error2 == Approx(measures ? error2 : 0.0).epsilon(1e-5));
  CHECK(sums.signal2 == Approx(measures ? signal2 : 0.0).epsilon(1e-5));
}

namespace {

/// Decodes a payload that may be anything. Returns true if it is accepted.
bool takes(CodecLink& link, const Bytes& payload) {
  Kokkos::deep_copy(link.received, 77.0f);
  try {
    link.decode(payload);
    return true;
  } catch (const UserError& error) {
    CHECK_THAT(error.what(), Catch::Contains("boundary 3 forward, step 11, micro-batch 2"));
    for (const float value : link.seen()) REQUIRE(value == 77.0f);
    return false;
  }
}

}  // namespace

TEST_CASE("topk refuses other payloads and leaves the rows unchanged", "[codec][topk]") {
  const double part = GENERATE(0.6, 0.1, 0.003);
  const auto values = GENERATE(ChosenValues::fp32, ChosenValues::fp16, ChosenValues::codes);
  const Case test{{2, 12, 25}, {12, 9}};
  CodecLink link(topk(part, values), test.shape, MemoryStorage::fp16);
  link.crossing.boundary = 3;
  link.crossing.step = 11;
  link.crossing.micro_batch = 2;
  link.prepare({0, 1}, test.tokens);
  const Bytes whole = link.encode(rows_of(test, normal, 1));
  for (std::size_t size = 0; size < whole.size(); ++size)
    CHECK_FALSE(takes(link, {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}));
  Bytes other = whole;
  other.resize(whole.size() + 4);
  CHECK_FALSE(takes(link, other));
  other.resize(100000);
  CHECK_FALSE(takes(link, other));
  // A flipped bit of a header is always detected, others may make another payload. Nothing crashes.
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    other = whole;
    other[bit / 8] ^= static_cast<std::uint8_t>(1u << bit % 8);
    const bool taken = takes(link, other);
    const bool is_exponent = bit / 8 % 12 >= 10;
    if (bit < 8 * 24 && !(values == ChosenValues::fp16 && is_exponent)) {
      CAPTURE(bit);
      CHECK_FALSE(taken);
    }
  }
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    other = whole;
    for (int change = 0; change < 4; ++change)
      other[random() % other.size()] = static_cast<std::uint8_t>(random());
    takes(link, other);
  }
  CHECK(takes(link, whole));
}

TEST_CASE("invalid settings of topk are refused", "[codec][topk]") {
  const CodecShape shape{1, 4, 5};
  const auto refused = [&](CodecSettings settings, const char* text) {
    CHECK_THROWS_WITH(make_codec(settings, shape, MemoryStorage::fp16), Catch::Contains(text));
  };
  refused(topk(0), "topk is out of range");
  refused(topk(1.5), "topk is out of range");
  refused(topk(std::nan("")), "topk is out of range");
  CodecSettings settings = topk(0.1, ChosenValues::codes);
  settings.scale = ScaleKind::channel;
  refused(settings, "no tokens and channels to share a scale");
  settings.values = ChosenValues::fp32;
  CHECK_NOTHROW(make_codec(settings, shape, MemoryStorage::fp16));
  settings.kind = CodecKind::aqsgd_topk;
  settings.error_feedback = true;
  refused(settings, "next change has what");
  settings = topk(0.1);
  settings.kind = CodecKind::directq;
  settings.error_feedback = true;
  settings.feedback_kind = FeedbackKind::mixed;
  refused(settings, "divides the positions that topk sends");
  CHECK_THROWS_WITH(make_codec(topk(0.1), {1, 1 << 16, 1 << 15}, MemoryStorage::fp16),
                    Catch::Contains("31 bits"));
}

TEST_CASE("both ends of topk agree on all that matters", "[codec][topk]") {
  const CodecShape shape{2, 4, 50};
  std::set<std::uint32_t> ids;
  const auto add = [&](const CodecSettings& settings, MemoryStorage storage = MemoryStorage::fp16) {
    const auto codec = make_codec(settings, shape, storage);
    CHECK(ids.insert(codec->id()).second);
    return codec->record();
  };
  CHECK(add(topk(0.1)) == RecordLayout{});
  add(topk(0.2));
  add(topk(0.1, ChosenValues::fp16));
  CodecSettings codes = topk(0.1, ChosenValues::codes);
  add(codes);
  codes.bits = 3;
  add(codes);
  CodecSettings feedback = topk(0.1);
  feedback.error_feedback = true;
  CHECK(add(feedback) == RecordLayout{.sender_bytes = 448});
  feedback.feedback_kind = FeedbackKind::mixed;
  CHECK(add(feedback) == RecordLayout{.sender_bytes = 448});
  feedback.feedback_kind = FeedbackKind::ef21;
  CHECK(add(feedback) == RecordLayout{.shared_bytes = 448});
  CHECK(add(feedback, MemoryStorage::fp32) == RecordLayout{.shared_bytes = 832});
  CodecSettings delta = topk(0.1);
  delta.kind = CodecKind::aqsgd_topk;
  CHECK(add(delta) == RecordLayout{.shared_bytes = 448});
  delta.first_visit = FirstVisit::fp32;
  add(delta);
}
