// SPDX-License-Identifier: BSD-3-Clause
// Values with which the next stage computes, compared with bounds of quantisation theory. Nothing
// here knows how codes, steps or memories are made: bounds follow from the number of levels, from
// the distance that an activation moved since its last visit, and from the precision of the
// storage.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "core/base/error.hpp"
#include "support/codec_pair.hpp"
#include "support/codec_reference.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

constexpr int kTokens = 6;
constexpr int kChannels = 160;
constexpr int kValues = kTokens * kChannels;
constexpr int kTile = 32;
constexpr int kStorageTile = 64;
/// Steps are sent with 9 significant bits, rounded up; sums are rounded to fp32.
constexpr double kSlack = (1 + 0x1p-8) * (1 + 0x1p-20);
constexpr double kTiny = 1e-30;

using Values = std::vector<double>;

CodecSettings settings_of(CodecKind kind, int bits, ScaleKind scale, Rounding rounding,
                          Levels levels, FirstVisit first = FirstVisit::quantize8) {
  CodecSettings settings;
  settings.kind = kind;
  settings.bits = bits;
  settings.scale = scale;
  settings.tile = kTile;
  settings.rounding = rounding;
  settings.levels = levels;
  settings.first_visit = first;
  return settings;
}

/// Returns the settings that a direction's deck allows.
std::vector<CodecSettings> all_settings(CodecKind kind) {
  std::vector<CodecSettings> all;
  for (int bits = 2; bits <= 8; ++bits)
    for (const auto scale : {ScaleKind::channel, ScaleKind::tile})
      for (const auto rounding : {Rounding::nearest, Rounding::stochastic})
        for (const auto levels : {Levels::symmetric, Levels::asymmetric})
          all.push_back(settings_of(kind, bits, scale, rounding, levels));
  return all;
}

const MemoryStorage kStorages[] = {MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16,
                                   MemoryStorage::bits8, MemoryStorage::bits4};

/// Returns the distance of neighbouring levels as a fraction of the largest |value| with their
/// scale.
double spacing(int bits, Levels levels, Rounding rounding) {
  const double half = std::ldexp(1.0, bits - 1);
  if (levels == Levels::symmetric) return 1 / (half - 1);
  // To nearest, 2^b levels from -1; unbiased, spaced such that the positive ones reach 1 as well.
  return rounding == Rounding::nearest ? 1 / half : 1 / (half - 1);
}

/// Returns the largest error as a fraction of the same.
double worst_error(int bits, Levels levels, Rounding rounding) {
  const double between = spacing(bits, levels, rounding);
  if (rounding == Rounding::stochastic) return between;
  // Asymmetric levels lack one level at the top.
  return levels == Levels::asymmetric ? between : between / 2;
}

/// Returns the index of the group of values that share a scale.
int group_of(ScaleKind scale, int tile, int i) {
  const int t = i / kChannels, c = i % kChannels;
  if (scale == ScaleKind::channel) return c;
  return t * kChannels + c / tile;
}

/// Returns, for every value, the largest |x| of its group.
Values group_maxima(ScaleKind scale, int tile, const Values& x) {
  Values largest(kValues, 0.0), result(kValues);
  for (int i = 0; i < kValues; ++i) {
    double& group = largest[group_of(scale, tile, i)];
    group = std::max(group, std::abs(x[i]));
  }
  for (int i = 0; i < kValues; ++i) result[i] = largest[group_of(scale, tile, i)];
  return result;
}

/// Returns the largest distances of stored values from values of these magnitudes.
Values storage_errors(MemoryStorage storage, const Values& magnitudes) {
  Values result(kValues, 0.0);
  const Values tiles = group_maxima(ScaleKind::tile, kStorageTile, magnitudes);
  for (int i = 0; i < kValues; ++i) {
    if (storage == MemoryStorage::fp16) result[i] = magnitudes[i] * 0x1p-11 + 0x1p-25;
    if (storage == MemoryStorage::bf16) result[i] = magnitudes[i] * 0x1p-8;
    if (storage == MemoryStorage::bits8) result[i] = tiles[i] / 254 * kSlack;
    if (storage == MemoryStorage::bits4) result[i] = tiles[i] / 14 * kSlack;
  }
  return result;
}

/// Not inlined: GCC 12 would report a use after free.
[[gnu::noinline]] double rms(const Values& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum / static_cast<double>(x.size()));
}

[[gnu::noinline]] double mean(const Values& x) {
  double sum = 0;
  for (const double value : x) sum += value;
  return sum / static_cast<double>(x.size());
}

Values difference(const std::vector<float>& seen, const std::vector<float>& a) {
  Values result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = double{seen[i]} - a[i];
  return result;
}

/// Activations whose channels differ in size, three of them by 30 times, and that move by a
/// fraction of their size between visits.
class Activation {
 public:
  Activation(double drift, std::uint32_t seed) : drift_(drift), random_(seed), value(kValues) {
    std::lognormal_distribution<double> size(0, 0.5);
    for (int c = 0; c < kChannels; ++c) size_[c] = size(random_) * (c % 53 == 7 ? 30 : 1);
    for (int i = 0; i < kValues; ++i)
      value[i] = static_cast<float>(size_[i % kChannels] * normal_(random_));
  }
  void move() {
    for (int i = 0; i < kValues; ++i)
      value[i] += static_cast<float>(drift_ * size_[i % kChannels] * normal_(random_));
  }

 private:
  double drift_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  double size_[kChannels];

 public:
  std::vector<float> value;
};

/// Returns the largest errors of a first visit.
Values first_errors(const CodecSettings& settings, const std::vector<float>& a) {
  const Values tiles = group_maxima(ScaleKind::tile, settings.tile, {a.begin(), a.end()});
  Values result(kValues, 0.0);
  for (int i = 0; i < kValues; ++i) {
    if (settings.first_visit == FirstVisit::quantize8) result[i] = tiles[i] / 254 * kSlack;
  }
  return result;
}

/// Bounds of the theory for a sample: on the distance of the next stage's last value from the
/// activation, and of the memory from that value.
struct Tracked {
  std::vector<float> last;
  Values error, stored;

  /// Returns, for every value, the largest possible distance of the activation from the memory.
  Values range(const std::vector<float>& a) const {
    Values result(kValues);
    for (int i = 0; i < kValues; ++i)
      result[i] = std::abs(double{a[i]} - last[i]) + error[i] + stored[i];
    return result;
  }
  void visited(const std::vector<float>& a, Values new_error, MemoryStorage storage) {
    last = a;
    error = std::move(new_error);
    Values magnitudes(kValues);
    for (int i = 0; i < kValues; ++i) magnitudes[i] = std::abs(double{a[i]}) + error[i];
    stored = storage_errors(storage, magnitudes);
  }
};

/// Checks every value of some visits against the theory's bound. Returns the last visit's RMS error
/// and its mean range.
std::pair<double, double> visit_and_check(const CodecSettings& settings, MemoryStorage storage,
                                          Activation& a, int visits) {
  CodecPair ends(settings, {1, kTokens, kChannels}, storage);
  Tracked theory;
  double error = 0, range_mean = 0;
  for (int visit = 0; visit < visits; ++visit) {
    if (visit > 0) a.move();
    const Values errors = difference(ends.cross(a.value), a.value);
    Values bounds;
    if (visit == 0) {
      bounds = first_errors(settings, a.value);
    } else {
      const Values range = group_maxima(settings.scale, settings.tile, theory.range(a.value));
      const double worst = worst_error(settings.bits, settings.levels, settings.rounding);
      bounds = range;
      for (int i = 0; i < kValues; ++i)
        bounds[i] = bounds[i] * worst * kSlack + std::abs(double{a.value[i]}) * 0x1p-23;
      range_mean = mean(range);
      // The variance of stochastic rounding is at most a quarter of a squared step.
      const double half = spacing(settings.bits, settings.levels, settings.rounding) / 2 * kSlack;
      const double limit = 1.2 * half * rms(range);
      if (settings.rounding == Rounding::stochastic) CHECK(rms(errors) <= limit + kTiny);
    }
    int outside = 0;
    for (int i = 0; i < kValues; ++i) outside += std::abs(errors[i]) > bounds[i] + kTiny;
    CHECK(outside == 0);
    theory.visited(a.value, bounds, storage);
    error = rms(errors);
  }
  return {error, range_mean};
}

double direct_error(const CodecSettings& delta, const Activation& a) {
  CodecSettings direct = delta;
  direct.kind = CodecKind::directq;
  CodecPair ends(direct, {1, kTokens, kChannels}, MemoryStorage::fp32);
  return rms(difference(ends.cross(a.value), a.value));
}

}  // namespace

TEST_CASE("the next stage's values are as exact as drift, levels and storage allow") {
  const auto storage = GENERATE(from_range(std::begin(kStorages), std::end(kStorages)));
  const double drift = GENERATE(0.0, 0.02, 0.1, 0.5);
  int count = 0;
  for (CodecSettings settings : all_settings(CodecKind::aqsgd)) {
    settings.first_visit = count++ % 2 == 0 ? FirstVisit::fp32 : FirstVisit::quantize8;
    INFO(describe(settings) << ", storage " << static_cast<int>(storage) << ", drift " << drift);
    Activation a(drift, 11 + count);
    const auto [error, range] = visit_and_check(settings, storage, a, 7);
    // Sending the activation itself has the same error, but as a fraction of the activation, not of
    // the change; half of that if most values are far below the largest. At most a factor of a
    // hundred is required. Steps as long as the range do not settle.
    if (worst_error(settings.bits, settings.levels, settings.rounding) >= 1) continue;
    const double magnitude =
        mean(group_maxima(settings.scale, settings.tile, {a.value.begin(), a.value.end()}));
    const double direct = direct_error(settings, a);
    CHECK(direct / (error + kTiny) >= std::min(100.0, 0.25 * magnitude / (range + kTiny)));
    const bool fine = storage == MemoryStorage::fp32 || storage == MemoryStorage::fp16;
    const bool settles = settings.rounding == Rounding::nearest && settings.bits > 2;
    if (drift <= 0.02 && fine && settles) CHECK(direct >= 10 * error);
    if (drift <= 0.1 && fine && settles) CHECK(direct >= 3 * error);
  }
}

TEST_CASE("an unchanging activation is learnt at the rate of the levels") {
  const auto scale = GENERATE(ScaleKind::channel, ScaleKind::tile);
  const auto levels = GENERATE(Levels::symmetric, Levels::asymmetric);
  for (int bits = 2; bits <= 8; ++bits) {
    const CodecSettings settings = settings_of(CodecKind::aqsgd, bits, scale, Rounding::nearest,
                                               levels, FirstVisit::quantize8);
    INFO(describe(settings));
    const Activation a(0, 3);
    CodecPair ends(settings, {1, kTokens, kChannels}, MemoryStorage::fp32);
    ends.cross(a.value);
    double error = rms(difference(ends.cross(a.value), a.value));
    const double rate = worst_error(bits, levels, Rounding::nearest) * kSlack;
    // Errors spread evenly over the worst case's range, and fp32 sets a limit.
    for (int visit = 0; visit < 4; ++visit) {
      const double next = rms(difference(ends.cross(a.value), a.value));
      CHECK(next <= 1.8 * rate * error + 0x1p-23 * rms({a.value.begin(), a.value.end()}));
      error = next;
    }
  }
}

TEST_CASE("warm-ups and first visits pass on what was sent, with every storage") {
  const auto storage = GENERATE(from_range(std::begin(kStorages), std::end(kStorages)));
  CodecSettings settings = settings_of(CodecKind::aqsgd, 3, ScaleKind::tile, Rounding::nearest,
                                       Levels::symmetric, FirstVisit::fp32);
  const Activation a(0, 5);
  const CodecShape shape{1, kTokens, kChannels};
  CHECK(CodecPair(settings, shape, storage).cross(a.value) == a.value);
  settings.first_visit = FirstVisit::quantize8;
  const auto as_fp32 = CodecPair(settings, shape, MemoryStorage::fp32).cross(a.value);
  CHECK(CodecPair(settings, shape, storage).cross(a.value) == as_fp32);
  settings.warmup_epochs = 3;
  CodecPair ends(settings, shape, storage);
  for (int epoch = 0; epoch < 3; ++epoch) {
    ends.visit.epoch = epoch;
    CHECK(ends.cross(a.value) == a.value);
  }
}

TEST_CASE("gradients of every size cross a backward codec with the same relative error") {
  std::vector<CodecSettings> all = all_settings(CodecKind::directq);
  for (const auto kind : {CodecKind::none, CodecKind::fp16, CodecKind::bf16})
    all.push_back(settings_of(kind, 8, ScaleKind::tile, Rounding::nearest, Levels::symmetric));
  for (const CodecSettings& settings : all) {
    INFO(describe(settings) << ", kind " << static_cast<int>(settings.kind));
    const auto cross = [&](const std::vector<float>& x) {
      return CodecPair(settings, {1, kTokens, kChannels}, MemoryStorage::fp32).cross(x);
    };
    std::mt19937 random(6);
    std::student_t_distribution<float> heavy(4);
    std::vector<float> g(kValues);
    for (float& value : g) value = heavy(random);
    const std::vector<float> seen = cross(g);
    // Numbers that differ by a power of two have the same digits.
    for (const int exponent : {-30, -66, -100, 40}) {
      std::vector<float> scaled(kValues);
      for (int i = 0; i < kValues; ++i) scaled[i] = std::ldexp(g[i], exponent);
      const std::vector<float> there = cross(scaled);
      int other = 0;
      for (int i = 0; i < kValues; ++i) other += there[i] != std::ldexp(seen[i], exponent);
      CHECK(other == 0);
    }
    // Tokens of magnitudes from 1e6 to 1e-30 side by side.
    if (settings.kind == CodecKind::directq && settings.scale == ScaleKind::channel) continue;
    const double sizes[kTokens] = {1e6, 1, 1e-5, 1e-9, 1e-18, 1e-30};
    std::vector<float> mixed(kValues);
    for (int i = 0; i < kValues; ++i) mixed[i] = static_cast<float>(g[i] * sizes[i / kChannels]);
    const Values errors = difference(cross(mixed), mixed), all_errors = difference(seen, g);
    for (int t = 0; t < kTokens; ++t) {
      const auto row = [&](const Values& x) {
        return Values(x.begin() + t * kChannels, x.begin() + (t + 1) * kChannels);
      };
      CHECK(rms(row(errors)) / sizes[t] <= 1.1 * rms(row(all_errors)) + 1e-7);
    }
  }
}

namespace {

/// Returns the sums of (what the receiver sees - x) over draws of the random numbers; keys differ
/// by step and sample. For AQ-SGD, x is sent as a change of a memory that is restored for each
/// draw.
Values summed_errors(const CodecSettings& settings, const std::vector<float>& memory,
                     const std::vector<float>& x, int draws) {
  const bool remembers = settings.kind == CodecKind::aqsgd;
  CodecPair ends(settings, {1, kTokens, kChannels}, MemoryStorage::fp32);
  if (remembers) ends.cross(memory);
  DeviceBytes saved("deltapipe::Test::saved", ends.near.extent(0));
  Kokkos::deep_copy(saved, ends.near);
  Values sums(kValues, 0.0);
  for (int draw = 0; draw < draws; ++draw) {
    Kokkos::deep_copy(ends.near, saved);
    Kokkos::deep_copy(ends.far, saved);
    ends.visit.visits[0] = 1;
    const Values errors = difference(ends.cross(x), x);
    for (int i = 0; i < kValues; ++i) sums[i] += errors[i];
  }
  return sums;
}

}  // namespace

TEST_CASE("stochastic rounding is unbiased with all levels, scales and bits") {
  // A code has one of two neighbouring levels. By Hoeffding's inequality, the mean of n such errors
  // is more than t levels from 0 with a probability of at most 2 exp(-2 n t^2).
  const int draws = 400;
  const double settings_count = 96, failures = 1e-6;
  const auto within = [=](double errors, double checks) {
    return std::sqrt(std::log(2 * checks * settings_count / failures) / (2 * errors)) + 0x1p-16;
  };
  for (const auto kind : {CodecKind::directq, CodecKind::aqsgd})
    for (CodecSettings settings : all_settings(kind)) {
      if (settings.rounding != Rounding::stochastic) continue;
      settings.first_visit = FirstVisit::fp32;
      INFO(describe(settings) << ", kind " << static_cast<int>(kind));
      // Changes of all sizes, more of them positive, and the largest ones positive.
      Activation a(0, 7);
      std::vector<float> x = a.value;
      std::mt19937 random(8);
      std::uniform_real_distribution<float> change(-0.5f, 1);
      Values changes(kValues);
      for (int i = 0; i < kValues; ++i) {
        const float d = change(random);
        x[i] = kind == CodecKind::aqsgd ? a.value[i] + d : d;
        changes[i] = kind == CodecKind::aqsgd ? double{x[i]} - a.value[i] : d;
      }
      Values step = group_maxima(settings.scale, kTile, changes);
      for (double& s : step)
        s *= spacing(settings.bits, settings.levels, settings.rounding) * kSlack;
      const Values sums = summed_errors(settings, a.value, x, draws);
      double all = 0;
      int outside = 0;
      for (int i = 0; i < kValues; ++i) {
        const double rounding = std::abs(x[i]) * 0x1p-23;
        outside += std::abs(sums[i]) / draws > within(draws, kValues) * step[i] + rounding;
        all += sums[i] / (draws * step[i]);
      }
      CHECK(outside == 0);
      CHECK(std::abs(all) / kValues <= within(double{draws} * kValues, 1) + 1e-6);
    }
}

TEST_CASE("settings that cannot settle, or cannot represent half of the values, are refused") {
  const CodecShape shape{1, 1, 8};
  for (const auto kind : {CodecKind::directq, CodecKind::aqsgd})
    for (const auto rounding : {Rounding::nearest, Rounding::stochastic})
      CHECK_THROWS_AS(
          make_codec(settings_of(kind, 1, ScaleKind::tile, rounding, Levels::asymmetric), shape,
                     MemoryStorage::fp16),
          UserError);
  CHECK_THROWS_AS(make_codec(settings_of(CodecKind::aqsgd, 1, ScaleKind::tile, Rounding::stochastic,
                                         Levels::symmetric),
                             shape, MemoryStorage::fp16),
                  UserError);
}
