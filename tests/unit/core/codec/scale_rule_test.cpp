// SPDX-License-Identifier: BSD-3-Clause
// Steps of a fraction of the RMS: compared with sums in double precision, and errors at equal
// bytes.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numbers>
#include <random>

#include "support/codec_pair.hpp"
#include "support/codec_reference.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

using Values = std::vector<float>;

CodecSettings settings_of(CodecKind kind, int bits, double rms_step, ScaleKind scale,
                          int tile = 64) {
  CodecSettings settings;
  settings.kind = kind;
  settings.bits = bits;
  settings.rms_step = rms_step;
  settings.scale = scale;
  settings.tile = tile;
  settings.first_visit = FirstVisit::fp32;
  return settings;
}

double laplace(std::mt19937& random) {
  std::exponential_distribution<double> magnitude(1);
  return std::bernoulli_distribution(0.5)(random) ? magnitude(random) : -magnitude(random);
}

Values values_of(const std::string& data, int count, double size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::student_t_distribution<double> heavy(3);
  Values x(static_cast<std::size_t>(count));
  for (float& value : x) {
    const double drawn = data == "gauss"      ? normal(random)
                         : data == "laplace"  ? laplace(random)
                         : data == "heavy"    ? heavy(random)
                         : random() % 20 == 0 ? normal(random)
                                              : 0.0;  // sparse
    value = static_cast<float>(size * drawn);
  }
  return x;
}

double square_error(const Values& x, const Values& seen, std::size_t first, std::size_t end) {
  double sum = 0;
  for (std::size_t i = first; i < end; ++i) {
    const double error = double{x[i]} - seen[i];
    sum += error * error;
  }
  return sum;
}

/// Returns the steps of a payload of one sample whose codes are elsewhere or follow the steps.
std::vector<double> steps_of(const CodecPair& ends, std::size_t count) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), ends.payload);
  std::vector<double> steps;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = (host(2 * i) | static_cast<std::uint32_t>(host(2 * i + 1)) << 8)
                               << 15;
    float step;
    std::memcpy(&step, &bits, sizeof step);
    steps.push_back(step);
  }
  return steps;
}

}  // namespace

TEST_CASE("steps are the fraction of the RMS and bound the errors", "[codec][scale_rule]") {
  const std::string data = GENERATE("gauss", "laplace", "heavy", "sparse");
  const double size = GENERATE(1.0, 1e-12, 1e18);
  const double fraction = GENERATE(0.02, 0.3, 1.0, 1.9, 2.4);
  const int tile = GENERATE(48, kWholeRow);
  const auto rounding = GENERATE(Rounding::nearest, Rounding::stochastic);
  const int tokens = 5, channels = 200;
  CAPTURE(data, size, fraction);
  if (fraction > kLargestStochasticStep && rounding == Rounding::stochastic) return;
  CodecSettings settings = settings_of(CodecKind::directq, 4, 1.0, ScaleKind::tile, tile);
  settings.rms_step = fraction;
  settings.rounding = rounding;
  CodecPair ends(settings, {1, tokens, channels}, MemoryStorage::fp32);
  const Values x = values_of(data, tokens * channels, size, 3);
  const Values seen = ends.cross(x);
  const int width = std::min(tile, channels);
  const int groups = (channels + width - 1) / width;
  const std::vector<double> steps = steps_of(ends, static_cast<std::size_t>(tokens) * groups);
  for (int t = 0; t < tokens; ++t)
    for (int g = 0; g < groups; ++g) {
      const int first = t * channels + g * width;
      const int end = t * channels + std::min(channels, (g + 1) * width);
      double squares = 0, largest = 0;
      for (int i = first; i < end; ++i) {
        squares += double{x[i]} * x[i];
        largest = std::max(largest, std::abs(double{x[i]}));
      }
      const double expected = std::max(
          std::min(fraction * std::sqrt(squares / (end - first)), 1.8 * largest), largest / 127);
      const double step = steps[t * groups + g];
      CHECK(step >= expected * (1 - 1e-5));
      CHECK(step <= expected * (1 + 0x1p-8) * (1 + 1e-5));
      const double bound = (rounding == Rounding::nearest ? 0.5 : 1.0) * step * (1 + 1e-5);
      for (int i = first; i < end; ++i) {
        CHECK(std::abs(double{x[i]} - seen[i]) <= bound);
        const double level = step > 0 ? seen[i] / step : 0;
        CHECK(level == std::nearbyint(level));
      }
    }
}

namespace {

/// Returns a row that is hard for steps of the RMS.
Values row_of(const std::string& data, int width, std::mt19937& random) {
  if (data == "gauss" || data == "heavy") return values_of(data, width, 1.0, random());
  Values x(static_cast<std::size_t>(width), data == "one of them" ? 0.0f : 0.37f);
  if (data == "one of them") x[random() % x.size()] = -3.0f;
  if (data == "two sizes")
    for (std::size_t i = 0; i < x.size(); i += 3) x[i] = -0.9f;
  return x;
}

}  // namespace

// Error feedback and memories settle because ||x - C(x)||^2 <= (1 - delta) ||x||^2, delta > 0: at
// worst all values are half a step from a level. The step is s RMS, or what 127 levels need.
TEST_CASE("steps of the RMS are a contraction for every width", "[codec][scale_rule]") {
  const std::string data = GENERATE("gauss", "heavy", "constant", "two sizes", "one of them");
  const double fraction =
      GENERATE(double{kLeastRmsStep}, 0.3, 1.0, 1.5, double{kLargestStochasticStep});
  const int tile = GENERATE(7, kWholeRow);
  const auto rounding = GENERATE(Rounding::nearest, Rounding::stochastic);
  const int tokens = 24;
  std::mt19937 random(11);
  for (const int channels : {1, 2, 8, 64, 3000}) {
    CAPTURE(data, fraction, tile, static_cast<int>(rounding), channels);
    if (channels == 3000 && tile < channels) continue;
    CodecSettings settings = settings_of(CodecKind::directq, 4, 1.0, ScaleKind::tile, tile);
    settings.rms_step = fraction;
    settings.rounding = rounding;
    CodecPair ends(settings, {1, tokens, channels}, MemoryStorage::fp32);
    const int widest = std::min(tile, channels);
    Values x;
    std::vector<std::size_t> begins;
    for (int t = 0; t < tokens; ++t)
      for (int first = 0; first < channels; first += widest) {
        const Values row = row_of(data, std::min(widest, channels - first), random);
        begins.push_back(x.size());
        x.insert(x.end(), row.begin(), row.end());
      }
    begins.push_back(x.size());
    const int visits = rounding == Rounding::nearest ? 1 : 40;
    double all = 0, excess = 0, spread2 = 0;  // errors in excess of the bound
    std::vector<double> allowed;
    for (std::size_t g = 0; g + 1 < begins.size(); ++g) {
      const std::vector<double> group(x.begin() + static_cast<std::ptrdiff_t>(begins[g]),
                                      x.begin() + static_cast<std::ptrdiff_t>(begins[g + 1]));
      double squares = 0, largest = 0;
      for (const double value : group) {
        squares += value * value;
        largest = std::max(largest, std::abs(value));
      }
      const double rms = std::sqrt(squares / static_cast<double>(group.size()));
      const double step = std::max(fraction, largest / rms / 127) * (1 + 0x1p-8);
      REQUIRE(step < 2);
      allowed.push_back(squares * step * step / 4);
      all += squares;
    }
    for (int visit = 0; visit < visits; ++visit) {
      const Values seen = ends.cross(x);
      for (std::size_t g = 0; g + 1 < begins.size(); ++g) {
        const double over = square_error(x, seen, begins[g], begins[g + 1]) - allowed[g];
        if (rounding == Rounding::nearest) CHECK(over <= 1e-5 * allowed[g]);
        excess += over;
        spread2 += over * over;
      }
    }
    CHECK(excess <= 5 * std::sqrt(spread2) + 1e-5 * all);
  }
}

// Beyond that bound, the error of a group may shrink by next to nothing at a visit, but it shrinks.
TEST_CASE("changes settle with the largest steps for every width", "[codec][scale_rule]") {
  const std::string data = GENERATE("gauss", "heavy", "constant", "two sizes", "one of them");
  const double fraction = GENERATE(1.95, 2.1, double{kLargestRmsStep});
  const auto scale = GENERATE(ScaleKind::tile, ScaleKind::message);
  const int tokens = 5;
  std::mt19937 random(12);
  for (const int channels : {1, 2, 64, 300}) {
    CodecSettings settings = settings_of(CodecKind::aqsgd, 4, 1.0, scale, 16);
    settings.rms_step = fraction;
    settings.first_visit = FirstVisit::fp32;
    CodecPair ends(settings, {1, tokens, channels}, MemoryStorage::fp32);
    Values x;
    for (int t = 0; t < tokens; ++t) {
      const Values row = row_of(data, channels, random);
      x.insert(x.end(), row.begin(), row.end());
    }
    const Values zeros(x.size(), 0.0f);
    ends.cross(zeros);
    const double all = square_error(x, zeros, 0, x.size());
    double left = all;
    CAPTURE(data, fraction, static_cast<int>(scale), channels);
    // Until only the last bits of fp32 remain.
    for (int visit = 0; visit < 100 && left > 1e-9 * all; ++visit) {
      const double now = square_error(x, ends.cross(x), 0, x.size());
      REQUIRE(now < left);
      left = now;
    }
    CHECK(left < 1e-3 * all);
  }
}

namespace {

struct Measured {
  double error2 = 0;  ///< of the last visits, in units of the change's square
  double bits = 0;    ///< bits per value of the last visits' payloads
};

/// Returns the errors of a delta codec if samples move, with channels of different sizes.
Measured settled(const CodecSettings& settings) {
  const int tokens = 48, channels = 768, visits = 8, counted = 4;
  CodecPair ends(settings, {1, tokens, channels}, MemoryStorage::fp32);
  std::mt19937 random(17);
  std::normal_distribution<double> normal;
  std::lognormal_distribution<double> spread(0, 0.3);
  std::vector<double> size(channels);
  for (double& s : size) s = spread(random);
  Values x(static_cast<std::size_t>(tokens) * channels);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(size[i % channels] * normal(random));
  Measured result;
  double change2 = 0;
  for (int visit = 0; visit < visits; ++visit) {
    Values before = x;
    for (std::size_t i = 0; visit > 0 && i < x.size(); ++i)
      x[i] += static_cast<float>(0.1 * size[i % channels] * normal(random));
    const Values seen = ends.cross(x);
    if (visit < visits - counted) continue;
    result.error2 += square_error(x, seen, 0, x.size());
    change2 += square_error(x, before, 0, x.size());
    result.bits += 8.0 * static_cast<double>(ends.sent_bytes) / static_cast<double>(x.size());
  }
  result.error2 /= change2;
  result.bits /= counted;
  return result;
}

Measured delta(int bits, double rms_step, bool entropy_coding = false) {
  CodecSettings settings = settings_of(CodecKind::aqsgd, bits, rms_step, ScaleKind::tile);
  settings.entropy_coding = entropy_coding;
  return settled(settings);
}

}  // namespace

TEST_CASE("delta has smaller errors at equal bytes with entropy coding", "[codec][scale_rule]") {
  const Measured max2 = delta(2, 0);
  // The codes of 2 bits with the largest value as their scale carry half of that.
  const Measured coded2 = delta(2, 0, true);
  CHECK(coded2.error2 == max2.error2);
  CHECK(coded2.bits <= 0.75 * max2.bits);
  // The step decides: fewer bytes and smaller errors than packed codes of 2, 3 and 4 bits.
  const double steps[] = {1.2, 0.55, 0.27}, gains[] = {3, 2, 1.5};
  for (int bits = 2; bits <= 4; ++bits) {
    const Measured packed = delta(bits, 0);
    const Measured rms = delta(8, steps[bits - 2]);
    CAPTURE(bits, packed.bits, rms.bits, packed.error2, rms.error2);
    CHECK(rms.bits <= packed.bits);
    CHECK(rms.error2 <= packed.error2 / gains[bits - 2]);
  }
}

TEST_CASE("coarser steps of the RMS need fewer bytes", "[codec][scale_rule]") {
  Measured before{0, 9};
  for (const double step : {0.1, 0.25, 0.5, 1.0, 1.5, 1.9, 2.5}) {
    const Measured now = delta(8, step);
    CAPTURE(step, now.bits, now.error2);
    CHECK(now.bits < before.bits);
    CHECK(now.error2 > before.error2);
    before = now;
  }
}

TEST_CASE("first visits in steps have the bits of a Gaussian and the error of their step",
          "[codec][scale_rule]") {
  const double step = GENERATE(0.2, 0.4, 0.8);
  CodecSettings settings = settings_of(CodecKind::aqsgd, 2, 1.0, ScaleKind::tile);
  settings.rms_step = 1.5;
  settings.first_visit = FirstVisit::steps;
  settings.first_visit_step = step;
  const CodecShape shape{1, 64, 768};
  CodecPair ends(settings, shape, MemoryStorage::fp32);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(shape.tokens) * shape.channels);
  for (float& value : x) value = 3 * normal(random);
  const std::vector<float> seen = ends.cross(x), zeros(x.size(), 0.0f);
  // High-resolution theory: error step^2 / 12, entropy h(normal) - log2(step); a scale per tile,
  // and up to 0.1 bits for tables and streams.
  const double error2 = square_error(x, seen, 0, x.size()) / square_error(x, zeros, 0, x.size());
  const double bits = 8.0 * static_cast<double>(ends.sent_bytes) / static_cast<double>(x.size());
  const double entropy = 0.5 * std::log2(2 * std::numbers::pi * std::numbers::e) - std::log2(step);
  CAPTURE(step, error2, bits, entropy);
  CHECK(error2 == Approx(step * step / 12).epsilon(0.03));
  CHECK(bits > entropy + 16.0 / settings.tile);
  CHECK(bits < entropy + 16.0 / settings.tile + 0.1);
  // The next visit has steps of the change, not of the values.
  for (float& value : x) value += 0.1f * normal(random);
  CHECK(square_error(x, ends.cross(x), 0, x.size()) / square_error(x, zeros, 0, x.size()) <
        0.6 * error2);
}
