// SPDX-License-Identifier: BSD-3-Clause
// Error feedback: c = Q(x + e), e := x + e - c, with e at the sender only.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "core/base/error.hpp"
#include "core/codec/codec.hpp"
#include "core/codec/settings_check.hpp"
#include "support/codec_link.hpp"
#include "support/codec_reference.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

CodecSettings feedback(int bits, ScaleKind scale = ScaleKind::tile,
                       Rounding rounding = Rounding::nearest) {
  CodecSettings settings;
  settings.kind = CodecKind::directq;
  settings.bits = bits;
  settings.scale = scale;
  settings.tile = 16;
  settings.rounding = rounding;
  settings.error_feedback = true;
  return settings;
}

/// Returns Q of the rows of one crossing, with the scales of the settings.
std::vector<float> quantized(const CodecSettings& settings, int channels,
                             const std::vector<float>& rows) {
  std::vector<float> result(rows.size());
  const int count = static_cast<int>(rows.size()) / channels;
  const auto quantize = [&](const std::vector<std::size_t>& places) {
    std::vector<float> values;
    for (const std::size_t place : places) values.push_back(rows[place]);
    const Quantized q = naive_quantize(values, settings.bits, settings.levels);
    for (std::size_t i = 0; i < places.size(); ++i)
      result[places[i]] = static_cast<float>(q.level[i]) * q.step;
  };
  if (settings.scale == ScaleKind::channel) {
    for (int c = 0; c < channels; ++c) {
      std::vector<std::size_t> places;
      for (int row = 0; row < count; ++row)
        places.push_back(static_cast<std::size_t>(row) * channels + c);
      quantize(places);
    }
    return result;
  }
  const int width = settings.tile;
  for (int row = 0; row < count; ++row)
    for (int first = 0; first < channels; first += width) {
      std::vector<std::size_t> places;
      for (int c = first; c < std::min(first + width, channels); ++c)
        places.push_back(static_cast<std::size_t>(row) * channels + c);
      quantize(places);
    }
  return result;
}

}  // namespace

TEST_CASE("error feedback follows its formula to the bit", "[codec][feedback]") {
  const int bits = GENERATE(2, 3, 8);
  const auto scale = GENERATE(ScaleKind::channel, ScaleKind::tile);
  const CodecSettings settings = feedback(bits, scale);
  INFO(describe(settings));
  const CodecShape shape{2, 3, 37};
  CodecLink link(settings, shape, MemoryStorage::fp32, 3);
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  // Samples are first seen at different steps; sample 1 has two valid tokens.
  const std::vector<std::vector<std::uint64_t>> steps = {{0, 1}, {1, 2}, {2, 0}, {1}, {0, 1}};
  std::map<std::uint64_t, std::vector<float>> error;
  for (const auto& ids : steps) {
    std::vector<int> tokens;
    std::vector<float> x(static_cast<std::size_t>(shape.max_samples) * 3 * 37), rows;
    for (float& value : x) value = normal(random);
    for (std::size_t b = 0; b < ids.size(); ++b) {
      tokens.push_back(ids[b] == 1 ? 2 : 3);
      std::vector<float>& e = error[ids[b]];
      e.resize(3 * 37);
      for (int i = 0; i < tokens[b] * 37; ++i) rows.push_back(x[b * 111 + i] + e[i]);
    }
    const std::vector<float> c = quantized(settings, 37, rows);
    const std::vector<float> seen = link.cross(ids, tokens, x);
    std::size_t at = 0;
    for (std::size_t b = 0; b < ids.size(); ++b) {
      std::vector<float>& e = error[ids[b]];
      for (int i = 0; i < tokens[b] * 37; ++i, ++at) {
        REQUIRE(seen[b * 111 + i] == (bits == 1 ? Approx(c[at]).epsilon(0x1p-7) : Approx(c[at])));
        e[i] = rows[at] - seen[b * 111 + i];
      }
      REQUIRE(link.floats(ids[b]) == e);
    }
  }
}

// The sum of c over n visits is n x - e_n: for a constant x, the receiver's mean is off by e_n / n.
TEST_CASE("error feedback sends later what it leaves out", "[codec][feedback]") {
  const auto rounding = GENERATE(Rounding::nearest, Rounding::stochastic);
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bits8);
  const CodecShape shape{1, 1, 64};
  CodecSettings settings = feedback(2, ScaleKind::tile, rounding);
  std::vector<float> x(64);
  for (int i = 0; i < 64; ++i) x[i] = 0.3f * std::sin(static_cast<float>(3 * i + 1));
  x[0] = 1;
  const auto mean_error = [&](bool with_feedback, int n) {
    settings.error_feedback = with_feedback;
    CodecLink link(settings, shape, storage, 1);
    std::vector<double> sum(64);
    for (int visit = 0; visit < n; ++visit) {
      const std::vector<float> seen = link.cross({0}, {1}, x);
      for (int i = 0; i < 64; ++i) sum[i] += seen[i];
    }
    double largest = 0;
    for (int i = 0; i < 64; ++i) largest = std::max(largest, std::abs(sum[i] / n - x[i]));
    return largest;
  };
  // Rounding to nearest at levels -1, 0 and 1 times the largest |x + e| <= 1 + |e| leaves at most
  // half of that, so that |e| <= 1. Random rounding may leave all of it.
  const double bound = rounding == Rounding::nearest ? 1 : 4;
  const double stored = storage == MemoryStorage::bits8 ? 0.02 : 0.001;
  for (const int n : {4, 16, 64, 256}) {
    CAPTURE(n);
    CHECK(mean_error(true, n) <= bound / n + stored);
  }
  if (rounding == Rounding::nearest) CHECK(mean_error(false, 64) > 0.2);
}

TEST_CASE("only the sender keeps errors", "[codec][feedback]") {
  const CodecShape shape{2, 5, 30};
  const auto codec = make_codec(feedback(4), shape, MemoryStorage::fp16);
  CHECK(codec->record().bytes(BoundarySide::sender) == 320);  // 5 * 30 * 2, rounded up to 64
  CHECK(codec->record().bytes(BoundarySide::receiver) == 0);
  CHECK(codec->record().shared_bytes == 0);
  CodecSettings plain = feedback(4);
  plain.error_feedback = false;
  const auto without = make_codec(plain, shape, MemoryStorage::fp16);
  CHECK(without->record() == RecordLayout{});
  CHECK(without->id() != codec->id());
  CHECK(without->max_payload_bytes() == codec->max_payload_bytes());
  plain.kind = CodecKind::aqsgd;
  const RecordLayout delta = make_codec(plain, shape, MemoryStorage::fp16)->record();
  CHECK(delta.bytes(BoundarySide::sender) == 320);
  CHECK(delta.bytes(BoundarySide::receiver) == 320);
  CHECK(delta.shared_bytes == 320);
}

TEST_CASE("a warm-up leaves no error", "[codec][feedback]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::bits4);
  CodecSettings settings = feedback(3);
  settings.warmup_epochs = 1;
  const CodecShape shape{1, 2, 40};
  CodecLink link(settings, shape, storage, 1);
  settings.warmup_epochs = 0;
  CodecLink fresh(settings, shape, storage, 1);
  std::vector<float> x(80);
  for (int i = 0; i < 80; ++i) x[i] = std::cos(static_cast<float>(i * i));
  CHECK(link.cross({0}, {2}, x) == x);
  link.crossing.epoch = 1;
  const std::vector<float> seen = link.cross({0}, {2}, x);
  CHECK(seen == fresh.cross({0}, {2}, x));
  CHECK(seen != x);
}

// The gradients of a short batch are larger than those of a full one by a factor that errors do not
// have. With powers of two, everything else is the same to the bit.
TEST_CASE("errors of gradients do not depend on the step's scale", "[codec][feedback]") {
  const auto scales = GENERATE(ScaleKind::channel, ScaleKind::tile);
  const CodecShape shape{1, 2, 40};
  CodecLink plain(feedback(3, scales), shape, MemoryStorage::fp32, 1);
  CodecLink scaled(feedback(3, scales), shape, MemoryStorage::fp32, 1);
  for (int visit = 0; visit < 6; ++visit) {
    CAPTURE(visit);
    const float factor = std::ldexp(1.0f, visit % 2 == 0 ? 0 : -7);
    std::vector<float> x(80), y(80);
    for (int i = 0; i < 80; ++i) {
      x[i] = std::cos(static_cast<float>(i * i + visit));
      y[i] = factor * x[i];
    }
    scaled.crossing.scale = factor;
    const std::vector<float> expected = plain.cross({0}, {2}, x);
    std::vector<float> seen = scaled.cross({0}, {2}, y);
    for (float& value : seen) value /= factor;
    CHECK(seen == expected);
    CHECK(scaled.floats(0) == plain.floats(0));
  }
}

TEST_CASE("errors of the smallest gradients are kept", "[codec][feedback]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16);
  const CodecShape shape{1, 1, 64};
  CodecLink link(feedback(2), shape, storage, 1);
  std::vector<float> x(64);
  for (int i = 0; i < 64; ++i) x[i] = 3e-10f * std::sin(static_cast<float>(3 * i + 1));
  x[0] = 1e-9f;
  std::vector<double> sum(64);
  constexpr int kVisits = 64;
  for (int visit = 0; visit < kVisits; ++visit) {
    const std::vector<float> seen = link.cross({0}, {1}, x);
    for (int i = 0; i < 64; ++i) sum[i] += seen[i];
  }
  // Without feedback, all but the first value would arrive as 0.
  for (int i = 0; i < 64; ++i) CHECK(std::abs(sum[i] / kVisits - x[i]) < 1e-9 * 0.04);
}

TEST_CASE("errors stay finite for all values", "[codec][feedback]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16,
                                MemoryStorage::bits8, MemoryStorage::bits4);
  const CodecShape shape{1, 1, 40};
  CodecLink link(feedback(3), shape, storage, 1);
  link.crossing.scale = GENERATE(1.0, 1e-6);
  check_hostile_values(link, storage);
}

TEST_CASE("error sums with feedback compare the values seen with the original ones",
          "[codec][feedback]") {
  const CodecShape shape{1, 4, 50};
  CodecLink link(feedback(3), shape, MemoryStorage::fp16, 1);
  link.sender->measure_errors(true);
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  std::vector<float> x(200);
  double error2 = 0, signal2 = 0;
  for (int visit = 0; visit < 3; ++visit) {
    for (float& value : x) value = normal(random);
    const std::vector<float> seen = link.cross({0}, {4}, x);
    for (int i = 0; i < 200; ++i) {
      error2 += std::pow(double{seen[i]} - x[i], 2);
      signal2 += std::pow(double{x[i]}, 2);
    }
  }
  const CodecStatistics sums = link.sender->take_statistics(ExecSpace());
  CHECK(sums.elements == 600);
  CHECK(sums.error2 == Approx(error2).epsilon(1e-5));
  CHECK(sums.signal2 == Approx(signal2).epsilon(1e-5));
}

TEST_CASE("changes and 16-bit values have no error feedback", "[codec][feedback]") {
  CodecSettings settings = feedback(4);
  for (const CodecKind kind : {CodecKind::aqsgd, CodecKind::fp16, CodecKind::bf16}) {
    settings.kind = kind;
    CHECK(contradiction_in(settings).has_value());
    CHECK_THROWS_AS(make_codec(settings, {1, 1, 1}, MemoryStorage::fp16), UserError);
  }
  settings.kind = CodecKind::none;  // leaves nothing out
  CHECK(make_codec(settings, {1, 1, 1}, MemoryStorage::fp16)->record() == RecordLayout{});
}

TEST_CASE("errors of gradients far below fp16's range are kept in every storage",
          "[codec][feedback]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16,
                                MemoryStorage::bits8, MemoryStorage::bits4);
  const auto kind = GENERATE(FeedbackKind::ef, FeedbackKind::ef21);
  const double size = GENERATE(1.0, 1e-12, 1e-30);
  CodecSettings settings;
  settings.kind = CodecKind::directq;
  settings.bits = 3;
  settings.error_feedback = true;
  settings.feedback_kind = kind;
  constexpr int kChannels = 192;
  CodecLink link(settings, {1, 4, kChannels}, storage);
  std::mt19937 random(7);
  std::student_t_distribution<double> heavy(3);
  std::vector<float> x(4 * kChannels);
  for (float& value : x) value = static_cast<float>(size * heavy(random));
  std::vector<double> sum(x.size(), 0.0);
  double once = 0, all = 0, square = 0;
  constexpr int kVisits = 32;
  for (int visit = 0; visit < kVisits; ++visit) {
    const std::vector<float> seen = link.cross({0}, {4}, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum[i] += seen[i];
      if (visit == 0) once += std::pow((double{seen[i]} - x[i]) / size, 2);
    }
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    all += std::pow((sum[i] / kVisits - x[i]) / size, 2);
    square += std::pow(x[i] / size, 2);
  }
  // One visit has an error of 0.41. The next ones send what was left out, as far as the storage's
  // levels hold it.
  CHECK(std::sqrt(once / square) > 0.4);
  CHECK(std::sqrt(all / square) < (storage == MemoryStorage::bits4 ? 0.04 : 0.016));
}

// |c - x| <= a |e| + (|x| + a |e|) for codecs with errors that are no larger than their input.
TEST_CASE("errors do not outgrow the values that they are added to", "[codec][feedback]") {
  const CodecShape shape{2, 4, 64};
  CodecSettings rms = feedback(2);
  rms.entropy_coding = true;
  rms.rms_step = 1.9;
  CodecSettings message = rms;
  message.scale = ScaleKind::message;
  message.rms_step = kLargestRmsStep;
  CodecSettings stochastic = feedback(2, ScaleKind::tile, Rounding::stochastic);
  CodecSettings sparse;
  sparse.kind = CodecKind::topk;
  sparse.topk = 0.05;
  sparse.error_feedback = true;
  CodecSettings mixed = sparse;
  mixed.feedback_kind = FeedbackKind::mixed;
  for (const CodecSettings& settings :
       {feedback(3), feedback(2), rms, message, stochastic, sparse, mixed})
    for (const MemoryStorage storage : {MemoryStorage::fp32, MemoryStorage::bits8})
      for (const float growth : {0.1f, 1.0f, 10.0f}) {
        INFO(describe(settings) << ", growth " << growth);
        const double most = settings.kind == CodecKind::topk ? 1 / settings.topk : 2;
        CodecLink link(settings, shape, storage, 2);
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        float size = growth < 1 ? 1e8f : 1e-8f;
        for (int visit = 0; visit < 16; ++visit, size *= growth) {
          std::vector<float> x(2 * 4 * 64);
          for (float& value : x) value = size * normal(random);
          const std::vector<float> seen = link.cross({0, 1}, {4, 3}, x);
          for (const std::size_t b : {0, 1}) {
            double error2 = 0, values2 = 0;
            for (std::size_t i = b * 256; i < b * 256 + (b == 0 ? 256 : 192); ++i) {
              REQUIRE(std::isfinite(seen[i]));
              error2 += std::pow(double{seen[i]} - x[i], 2);
              values2 += std::pow(double{x[i]}, 2);
            }
            REQUIRE(std::sqrt(error2 / values2) <= 2 * most + 1);
          }
        }
        // The bound adds no errors to values of zero.
        for (const float value : link.cross({0, 1}, {4, 3}, std::vector<float>(2 * 4 * 64)))
          REQUIRE(value == 0);
      }
}
