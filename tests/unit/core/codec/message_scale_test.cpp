// SPDX-License-Identifier: BSD-3-Clause
// One step for all rows of a message: compared with its formula in double precision, with rows that
// differ in size, and with other steps at equally many bytes.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "core/base/error.hpp"
#include "support/codec_pair.hpp"
#include "support/codec_reference.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

using Values = std::vector<float>;

CodecSettings message(CodecKind kind, double rms_step) {
  CodecSettings settings;
  settings.kind = kind;
  settings.scale = ScaleKind::message;
  settings.rms_step = rms_step;
  settings.entropy_coding = true;
  settings.first_visit = FirstVisit::fp32;
  return settings;
}

/// Returns rows of Gaussian values, each times its own size.
Values rows_of_sizes(const std::vector<double>& sizes, int channels, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Values x;
  for (const double size : sizes)
    for (int c = 0; c < channels; ++c) x.push_back(static_cast<float>(size * normal(random)));
  return x;
}

double mean_square(const Values& x, int channels, std::size_t row) {
  double sum = 0;
  for (std::size_t i = row * channels; i < (row + 1) * channels; ++i) sum += double{x[i]} * x[i];
  return sum / channels;
}

std::vector<double> lognormal_sizes(int rows, double deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> size(0, deviation);
  std::vector<double> sizes(rows);
  for (double& s : sizes) s = size(random);
  return sizes;
}

}  // namespace

TEST_CASE("values of a message are rounded to multiples of its step", "[codec][message]") {
  const double fraction = GENERATE(0.1, 0.7, 1.9, 2.5);
  const double size = GENERATE(1.0, 1e-25, 1e15);
  for (const int channels : {1, 5, 64, 77}) {
    const auto sizes = lognormal_sizes(33, 1.0, 5);
    Values x = rows_of_sizes(sizes, channels, 6);
    for (float& value : x) value *= static_cast<float>(size);
    const int rows = static_cast<int>(sizes.size());
    CodecPair ends(message(CodecKind::directq, fraction), {1, rows, channels}, MemoryStorage::fp32);
    const Values seen = ends.cross(x);
    double square = 0;
    for (int row = 0; row < rows; ++row) square += mean_square(x, channels, row) / rows;
    const double step = fraction * std::sqrt(square);
    CAPTURE(fraction, size, channels);
    for (int row = 0; row < rows; ++row) {
      float largest = 0;
      for (int c = 0; c < channels; ++c)
        largest = std::max(largest, std::abs(x[row * channels + c]));
      // Rows that 127 levels would not reach have wider steps.
      const double widest = std::max(step, 1.12 * largest / 127) * (1 + 0x1p-7);
      for (int i = row * channels; i < (row + 1) * channels; ++i)
        REQUIRE(std::abs(double{seen[i]} - x[i]) <= widest / 2);
      if (largest >= 126 * step) continue;
      const double exact = round_step_up(static_cast<float>(step));
      for (int i = row * channels; i < (row + 1) * channels; ++i) {
        const double level = std::nearbyint(seen[i] / exact);
        // The last bit of the sum may round to the next step.
        REQUIRE(std::abs(seen[i] - level * exact) <= std::abs(level) * exact * 0x1p-7);
      }
    }
  }
}

TEST_CASE("steps of changes are proportional to the row in the memory", "[codec][message]") {
  // In GPT-2 the first token's row is fifty times as large as others.
  const int rows = 40, channels = 96;
  std::vector<double> sizes(rows, 1.0);
  for (int row = 0; row < rows; ++row) sizes[row] = row == 0 ? 50 : row % 3 == 0 ? 4 : 1;
  const Values before = rows_of_sizes(sizes, channels, 1);
  std::vector<double> moves = sizes;
  for (double& move : moves) move *= 0.1;
  const Values change = rows_of_sizes(moves, channels, 2);
  Values after = before;
  for (std::size_t i = 0; i < after.size(); ++i) after[i] += change[i];
  CodecPair ends(message(CodecKind::aqsgd, 1.0), {1, rows, channels}, MemoryStorage::fp32);
  ends.cross(before);
  const Values seen = ends.cross(after);
  double square = 0;
  for (int row = 0; row < rows; ++row)
    square += mean_square(change, channels, row) / mean_square(before, channels, row) / rows;
  for (int row = 0; row < rows; ++row) {
    CAPTURE(row);
    const double step = std::sqrt(square * mean_square(before, channels, row));
    for (int i = row * channels; i < (row + 1) * channels; ++i)
      REQUIRE(std::abs(double{seen[i]} - after[i]) <= step / 2 * std::exp2(0.08));
  }
  // Gaussian values in steps of their RMS carry 2.1 bits per value; the largest row has finer
  // steps.
  CHECK(8.0 * static_cast<double>(ends.sent_bytes) / static_cast<double>(after.size()) < 2.5);
}

TEST_CASE("one step for a message has smaller errors than one per token at equally many bytes",
          "[codec][message]") {
  // Changes of rows differ. The least square error at a given rate has equal errors everywhere. It
  // is smaller than with errors in proportion to rows, by AM / GM of the rows' mean squares.
  const int rows = 512, channels = 256;
  const double deviation = GENERATE(0.4, 0.8);
  const Values x = rows_of_sizes(lognormal_sizes(rows, deviation, 3), channels, 4);
  const auto send = [&](ScaleKind scale, double step) {
    CodecSettings settings = message(CodecKind::directq, step);
    settings.scale = scale;
    settings.tile = kWholeRow;
    CodecPair ends(settings, {1, rows, channels}, MemoryStorage::fp32);
    const Values seen = ends.cross(x);
    double error = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double left = double{seen[i]} - x[i];
      error += left * left;
    }
    return std::pair(static_cast<double>(ends.sent_bytes), error);
  };
  const auto [bytes, error] = send(ScaleKind::tile, 1.0);
  double fine = 0.2, coarse = 1.9;  // bisect for as many bytes
  for (int i = 0; i < 20; ++i) {
    const double middle = std::sqrt(fine * coarse);
    (send(ScaleKind::message, middle).first > bytes ? fine : coarse) = middle;
  }
  const auto [as_many, less] = send(ScaleKind::message, coarse);
  CAPTURE(deviation, bytes, as_many, error, less);
  CHECK(as_many <= bytes);
  // exp(deviation^2) in theory at many bits: 0.85 and 0.53.
  CHECK(less < error * (deviation < 0.5 ? 0.85 : 0.65));
}

TEST_CASE("both ends agree on messages with any values", "[codec][message]") {
  const auto kind = GENERATE(CodecKind::directq, CodecKind::aqsgd);
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::bits4);
  const float infinity = std::numeric_limits<float>::infinity();
  const int rows = 5, channels = 19;
  const auto filled = [&](float value) { return Values(rows * channels, value); };
  std::vector<Values> all = {filled(0), filled(1), filled(3e38f), filled(-1e-44f), filled(NAN)};
  all.push_back(filled(0));
  all.back()[7] = 1e30f;
  all.push_back(rows_of_sizes({1e-30, 1, 1e30, 0, 1e-40}, channels, 9));
  all.push_back(all.back());
  all.back()[40] = infinity;
  all.back()[3] = NAN;
  all.push_back(filled(0));
  CodecPair ends(message(kind, 1.3), {1, rows, channels}, storage);
  for (int visit = 0; visit < 3; ++visit)
    for (const Values& x : all) {
      const Values seen = ends.cross(x);  // compares both ends' records
      for (const float value : seen) REQUIRE(std::isfinite(value));
    }
  for (const int tokens : {0, 1, 4}) {
    ends.visit.tokens = {tokens};
    ends.cross(all[6]);
  }
}

TEST_CASE("a message sends later what it leaves out of small rows", "[codec][message][feedback]") {
  const auto kind = GENERATE(FeedbackKind::ef, FeedbackKind::ef21);
  CodecSettings settings = message(CodecKind::directq, 1.0);
  settings.error_feedback = true;
  settings.feedback_kind = kind;
  // Rows of 1/40 of the largest one's size are below half a step at every single crossing.
  const int channels = 64;
  std::vector<double> sizes(24, 0.025);
  sizes[0] = 1;
  const Values x = rows_of_sizes(sizes, channels, 8);
  CodecPair ends(settings, {1, static_cast<int>(sizes.size()), channels}, MemoryStorage::fp32);
  std::vector<double> sum(x.size());
  const int visits = 400;
  Values seen;
  for (int visit = 0; visit < visits; ++visit) {
    seen = ends.cross(x);
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] += seen[i];
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double got = kind == FeedbackKind::ef ? sum[i] / visits : double{seen[i]};
    REQUIRE(std::abs(got - x[i]) < 0.01);
  }
}

TEST_CASE("a damaged message with one step is refused or decoded, and nothing else happens",
          "[codec][message][hostile]") {
  const CodecShape shape{1, 12, 33};
  CodecPair ends(message(CodecKind::directq, 0.8), shape, MemoryStorage::fp32);
  const Values x = rows_of_sizes(lognormal_sizes(12, 1, 2), 33, 3);
  ends.cross(x);
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), ends.payload);
  const std::vector<std::uint8_t> whole(host.data(), host.data() + ends.sent_bytes);
  const auto read = [&](const std::vector<std::uint8_t>& bytes) {
    const DeviceBytes payload("deltapipe::Test::damaged", ends.payload.extent(0));
    const auto mirror = Kokkos::create_mirror_view(payload);
    std::copy(bytes.begin(), bytes.end(), mirror.data());
    Kokkos::deep_copy(payload, mirror);
    try {
      ends.receiver->decode(ExecSpace(), ends.visit, payload, bytes.size(), {}, ends.received);
      Kokkos::fence();
      return true;
    } catch (const UserError&) {
      return false;
    }
  };
  CHECK(read(whole));
  for (std::size_t length = 0; length < whole.size(); ++length)
    CHECK_FALSE(read({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)}));
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (const int flip : {1, 0x10, 0xff}) {
      std::vector<std::uint8_t> damaged = whole;
      damaged[at] = static_cast<std::uint8_t>(damaged[at] ^ flip);
      if (!read(damaged)) ++refused;
    }
  CHECK(refused > 0);
  CHECK(read(whole));
}

TEST_CASE("one step for a message requires steps of the RMS", "[codec][message]") {
  CodecSettings settings = message(CodecKind::aqsgd, 1);
  CHECK_NOTHROW(make_codec(settings, {1, 1, 8}, MemoryStorage::fp16));
  settings.rms_step = 0;
  CHECK_THROWS_WITH(make_codec(settings, {1, 1, 8}, MemoryStorage::fp16),
                    Catch::Contains("set step"));
  settings = message(CodecKind::topk, 1);
  settings.rms_step = 0;
  settings.entropy_coding = false;
  settings.values = ChosenValues::codes;
  CHECK_THROWS_WITH(make_codec(settings, {1, 1, 8}, MemoryStorage::fp16),
                    Catch::Contains("scale = \"message\""));
}

TEST_CASE("no message is longer than announced, whatever its samples and rows",
          "[codec][message]") {
  const auto kind = GENERATE(CodecKind::directq, CodecKind::aqsgd);
  CodecSettings settings = message(kind, 0.3);
  settings.first_visit = FirstVisit::steps;
  for (const int channels : {1, 5, 64})
    for (int tokens = 1; tokens <= 17; ++tokens)
      for (const int samples : {1, 2, 5, 16}) {
        const CodecShape shape{samples, tokens, channels};
        const auto codec = make_codec(settings, shape, MemoryStorage::fp32);
        Crossing crossing;
        for (int b = 0; b < samples; ++b) crossing.sample_ids.push_back(b);
        for (const int visit : {0, 2}) {
          crossing.tokens.assign(samples, tokens);
          crossing.visits.assign(samples, visit);
          INFO(samples << " samples of " << tokens << " x " << channels << ", visit " << visit);
          CHECK(codec->payload_bytes(crossing) <= codec->max_payload_bytes());
        }
      }
}

TEST_CASE("changes are sent even with the largest steps", "[codec][message]") {
  // Rows of one size each are sent as zeros by steps of more than two of their RMS.
  const double fraction = GENERATE(1.5, 1.7, 1.8, 1.9, 2.1, 2.5);
  const double ratio = GENERATE(1.05, 1.25, 1.4, 3.0);
  const int rows = 64, channels = 64;
  CodecPair ends(message(CodecKind::aqsgd, fraction), {1, rows, channels}, MemoryStorage::fp32);
  std::mt19937 random(1);
  Values before(rows * channels), after(before.size());
  for (int i = 0; i < rows * channels; ++i) {
    before[i] = static_cast<float>((random() % 2 ? 1 : -1) * (i < channels ? 1 : ratio));
    after[i] = before[i] * (random() % 2 ? 1.1f : 0.9f);
  }
  ends.cross(before);
  const auto error = [&](const Values& seen) {
    double sum = 0;
    for (std::size_t i = 0; i < seen.size(); ++i)
      sum += std::pow((double{seen[i]} - after[i]) / before[i], 2);
    return std::sqrt(sum / static_cast<double>(seen.size()));
  };
  for (int visit = 0; visit < 20; ++visit) ends.cross(after);
  CAPTURE(fraction, ratio);
  CHECK(error(ends.cross(after)) < 0.05);
}

TEST_CASE("a row with a tiny memory does not keep others from being sent", "[codec][message]") {
  const double small = GENERATE(1e-2, 1e-4, 1e-10, 1e-30);
  const int rows = 256, channels = 64;
  CodecPair ends(message(CodecKind::aqsgd, 1.5), {1, rows, channels}, MemoryStorage::fp32);
  std::vector<double> sizes(rows, 1.0), moves(rows, 0.1);
  sizes[7] = small;
  moves[7] = 1;
  const Values before = rows_of_sizes(sizes, channels, 1);
  const Values change = rows_of_sizes(moves, channels, 2);
  Values after = before;
  for (std::size_t i = 0; i < after.size(); ++i) after[i] += change[i];
  ends.cross(before);
  Values seen;
  for (int visit = 0; visit < 8; ++visit) seen = ends.cross(after);
  for (std::size_t i = 0; i < after.size(); ++i) REQUIRE(std::abs(seen[i] - after[i]) < 0.06);
}
