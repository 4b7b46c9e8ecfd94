// SPDX-License-Identifier: BSD-3-Clause
// Changes as components of a basis that the sender finds: exact at both ends, and worth what theory
// says.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/base/error.hpp"
#include "core/codec/prediction/klt_transform.hpp"
#include "core/codec/prediction/symmetric_eigen.hpp"
#include "core/codec/settings_check.hpp"
#include "support/codec_ends.hpp"
#include "support/codec_link.hpp"
#include "support/codec_reference.hpp"
#include "support/device_values.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

constexpr int kSamples = 6;
constexpr int kTokens = 48;
constexpr int kChannels = 40;
constexpr std::size_t kWord = 4;

using Values = std::vector<float>;

CodecSettings transforming(Transform transform = Transform::klt, double rms_step = 1) {
  CodecSettings settings;
  settings.kind = CodecKind::delta;
  settings.scale = ScaleKind::message;
  settings.scale_rule = ScaleRule::rms;
  settings.rms_step = rms_step;
  settings.entropy_coding = true;
  settings.first_visit = FirstVisit::fp16;
  settings.prediction = Prediction::linear;
  settings.prediction_interval = 1 << 20;  // none is ever sent
  settings.transform = transform;
  settings.transform_interval = 2;
  return settings;
}

/// Rows that change at each crossing by amounts of their own in a few directions that all have in
/// common, and a little elsewhere.
class CommonDirections {
 public:
  CommonDirections(int channels, int directions, float elsewhere, unsigned seed = 11)
      : channels_(channels), elsewhere_(elsewhere), random_(seed) {
    std::normal_distribution<float> normal;
    rows_.resize(static_cast<std::size_t>(kSamples) * kTokens * channels);
    for (float& value : rows_) value = 10 * normal(random_);
    directions_.resize(directions, Values(channels));
    for (Values& direction : directions_)
      for (float& value : direction) value = normal(random_) / std::sqrt(float(channels));
  }
  void move() {
    std::normal_distribution<float> normal;
    for (std::size_t first = 0; first < rows_.size(); first += channels_) {
      for (const Values& direction : directions_) {
        const float amount = normal(random_);
        for (int c = 0; c < channels_; ++c) rows_[first + c] += amount * direction[c];
      }
      for (int c = 0; c < channels_; ++c) rows_[first + c] += elsewhere_ * normal(random_);
    }
  }
  Values rows(const std::vector<std::uint64_t>& ids) const {
    Values rows;
    const auto size = static_cast<std::ptrdiff_t>(kTokens) * channels_;
    for (const std::uint64_t id : ids)
      rows.insert(rows.end(), rows_.begin() + static_cast<std::ptrdiff_t>(id) * size,
                  rows_.begin() + static_cast<std::ptrdiff_t>(id + 1) * size);
    return rows;
  }

 private:
  int channels_;
  float elsewhere_;
  std::mt19937 random_;
  Values rows_;
  std::vector<Values> directions_;
};

struct TransformedLink : CodecLink {
  explicit TransformedLink(const CodecSettings& settings,
                           MemoryStorage storage = MemoryStorage::fp32, int channels = kChannels)
      : CodecLink(settings, {2, kTokens, channels}, storage, kSamples) {}

  /// One epoch: all samples cross, two at a time, and all change after each crossing.
  void pass(CommonDirections& data) {
    for (std::uint64_t id = 0; id < kSamples; id += 2) {
      const std::vector<std::uint64_t> ids{id, id + 1};
      cross(ids, {kTokens, kTokens - 5}, data.rows(ids));
      bytes += sent_bytes.size();
      words.push_back(word_of(sent_bytes));
      data.move();
    }
  }
  static std::uint32_t word_of(const std::vector<std::uint8_t>& payload) {
    std::uint32_t value = 0;
    std::memcpy(&value, payload.data() + payload.size() - kWord, kWord);
    return value;
  }
  /// Totals of `epochs` epochs: bytes without those of bases, and the relative squared error.
  std::pair<double, double> measure(CommonDirections& data, int epochs) {
    sender->take_statistics(ExecSpace());
    sender->measure_errors(true);
    bytes = 0;
    words.clear();
    for (int epoch = 0; epoch < epochs; ++epoch) pass(data);
    const auto bases = static_cast<double>(std::count(words.begin(), words.end(), 2u));
    const CodecStatistics statistics = sender->take_statistics(ExecSpace());
    return {static_cast<double>(bytes) - bases * static_cast<double>(basis_bytes()),
            statistics.error2};
  }
  std::size_t basis_bytes() const { return codec::KltBasis<std::uint8_t>::size(shape.channels); }

  std::size_t bytes = 0;
  std::vector<std::uint32_t> words;
};

}  // namespace

TEST_CASE("no sum of levels and basis values leaves fp32's integers", "[transform]") {
  for (int channels = 1; channels <= 20000; ++channels) {
    const std::int64_t largest = codec::largest_basis_value(channels);
    REQUIRE(largest >= 1);
    if (channels <= (1 << 24) / codec::kLargestLevel)
      REQUIRE(largest * codec::kLargestLevel * channels <= std::int64_t{1} << 24);
  }
}

TEST_CASE("eigenvectors of a symmetric matrix", "[transform]") {
  const int n = GENERATE(1, 2, 5, 64, 129);
  std::mt19937 random(static_cast<unsigned>(n));
  std::normal_distribution<double> normal;
  std::vector<double> a(static_cast<std::size_t>(n) * n);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j <= i; ++j) a[i * n + j] = a[j * n + i] = normal(random);
  SymmetricEigen eigen(n);
  const HostVector<float> v = eigen.matrix();
  for (std::size_t i = 0; i < a.size(); ++i) v(i) = static_cast<float>(a[i]);
  REQUIRE(eigen.solve());
  double before = -std::numeric_limits<double>::infinity();
  for (int k = 0; k < n; ++k) {
    // A v = (v' A v) v, values ascend, vectors are orthonormal.
    std::vector<double> product(n);
    double value = 0;
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) product[i] += a[i * n + j] * double{v(k * n + j)};
      value += product[i] * double{v(k * n + i)};
    }
    for (int i = 0; i < n; ++i)
      CHECK(product[i] == Approx(value * double{v(k * n + i)}).margin(1e-4 * n));
    CHECK(value >= before - 1e-4);
    before = value;
    for (int l = 0; l <= k; ++l) {
      double dot = 0;
      for (int i = 0; i < n; ++i) dot += double{v(k * n + i)} * double{v(l * n + i)};
      CHECK(dot == Approx(k == l ? 1 : 0).margin(1e-5));
    }
  }
  v(0) = GENERATE(std::nanf(""), std::numeric_limits<float>::infinity());
  CHECK_FALSE(eigen.solve());
}

TEST_CASE("what levels stand for is a sum of integers, to the bit", "[transform]") {
  const int channels = GENERATE(1, 3, 40, 77, 600, 1033, 1600);
  const int rows = 5;
  const CodecShape shape{1, rows, channels};
  const auto n = static_cast<std::size_t>(channels);
  std::mt19937 random(static_cast<unsigned>(channels));
  const int largest = codec::largest_basis_value(channels);
  std::uniform_int_distribution<int> value(-largest, largest), level(-128, 128);
  std::vector<std::uint8_t> payload(codec::KltBasis<std::uint8_t>::size(channels) + kWord);
  const codec::KltBasis<std::uint8_t> basis{payload.data(), channels};
  std::vector<int> w(n * n), q(rows * n);
  for (std::size_t j = 0; j < n; ++j) {
    basis.scale()[j] = 1;
    for (std::size_t i = 0; i < n; ++i) {
      w[j * n + i] = j == 0 ? largest : value(random);  // the largest sum there can be
      basis.row(static_cast<int>(j))[i] = static_cast<std::int8_t>(w[j * n + i]);
    }
  }
  const std::uint32_t word = 2;
  std::memcpy(payload.data() + payload.size() - kWord, &word, kWord);
  const DeviceBytes sent("deltapipe::Test::payload", payload.size());
  copy_to_device<std::uint8_t>(payload, VectorRef<std::uint8_t>(sent.data(), payload.size()));

  codec::KltTransform transform(shape, 1);
  Crossing crossing;
  crossing.sample_ids = {0};
  REQUIRE(transform.read(ExecSpace(), crossing, sent.data(), payload.size()) == payload.size());
  float* const levels = transform.adopt(ExecSpace(), sent.data());
  Values host(rows * n);
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = i < n ? 128 : level(random);
    host[i] = static_cast<float>(q[i]);
  }
  copy_to_device<float>(host, VectorRef<float>(levels, host.size()));
  const float* const sums = transform.synthesize(ExecSpace(), rows);
  Kokkos::fence();
  const Values found = to_host(VectorRef<const float>(sums, host.size()));
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t j = 0; j < n; ++j) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < n; ++i) sum += std::int64_t{q[row * n + i]} * w[j * n + i];
      REQUIRE(static_cast<std::int64_t>(found[row * n + j]) == sum);
    }
}

TEST_CASE("changes in few directions take fewer bits at the same error", "[transform]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bits8);
  const double step = GENERATE(0.5, 1.5);
  const int channels = 64;
  CommonDirections data(channels, 4, 0.02f), same(channels, 4, 0.02f);
  TransformedLink with(transforming(Transform::klt, step), storage, channels);
  TransformedLink without(transforming(Transform::none, step), storage, channels);
  for (int epoch = 0; epoch < 12; ++epoch) {
    with.pass(data);
    without.pass(same);
  }
  CHECK(std::count(with.words.begin(), with.words.end(), 2u) > 0);
  const auto [bytes, error] = with.measure(data, 4);
  const auto [plain_bytes, plain_error] = without.measure(same, 4);
  const double values = 4.0 * kSamples / 2 * (2 * kTokens - 5) * channels;
  const double bits = 8 * bytes / values, plain_bits = 8 * plain_bytes / values;
  CAPTURE(static_cast<int>(storage), step, bits, plain_bits, error, plain_error);
  // Zeros in 60 of 64 directions err by nothing more than what is there.
  CHECK(error < 1.05 * plain_error);
  // 2.1 bits in steps of the RMS, 3.1 in half of it: four components have a sixteenth of the
  // values; tables, a byte a row and the rest of the directions take something, too.
  CHECK(plain_bits > (step < 1 ? 2.5 : 1.2));
  CHECK(bits < (storage == MemoryStorage::bits8 ? 0.6 : 0.5) * plain_bits);
}

TEST_CASE("the basis that travels is orthonormal, its first directions those of the changes",
          "[transform]") {
  const int channels = 48, directions = 3;
  CommonDirections data(channels, directions, 0.01f);
  TransformedLink link(transforming(), MemoryStorage::fp32, channels);
  std::vector<std::uint8_t> bytes;
  for (int epoch = 0; epoch < 8 && bytes.empty(); ++epoch)
    for (std::uint64_t id = 0; id < kSamples; id += 2) {
      link.cross({id, id + 1}, {kTokens, kTokens}, data.rows({id, id + 1}));
      if (epoch > 0 && TransformedLink::word_of(link.sent_bytes) == 2)
        bytes.assign(
            link.sent_bytes.end() - static_cast<std::ptrdiff_t>(kWord + link.basis_bytes()),
            link.sent_bytes.end());
      data.move();
    }
  REQUIRE(!bytes.empty());
  const codec::KltBasis<std::uint8_t> basis{bytes.data(), channels};
  const auto value = [&](int j, int i) { return double{basis.scale()[j]} * basis.row(j)[i]; };
  for (int i = 0; i < channels; ++i)
    for (int k = 0; k <= i; ++k) {
      double dot = 0;
      for (int j = 0; j < channels; ++j) dot += value(j, i) * value(j, k);
      CHECK(dot == Approx(i == k ? 1 : 0).margin(0.02));
    }
  // A change outside of the first components is as large as elsewhere.
  const Values before = data.rows({0});
  data.move();
  const Values after = data.rows({0});
  double inside = 0, all = 0;
  for (int t = 0; t < kTokens; ++t)
    for (int i = 0; i < channels; ++i) {
      double component = 0;
      for (int j = 0; j < channels; ++j)
        component += value(j, i) * (double{after[t * channels + j]} - before[t * channels + j]);
      (i < directions ? inside : all) += component * component;
    }
  all += inside;
  CHECK(inside > 0.98 * all);
}

TEST_CASE("changes without common directions get no basis", "[transform]") {
  CommonDirections data(kChannels, 0, 1.0f);
  TransformedLink link(transforming());
  for (int epoch = 0; epoch < 8; ++epoch) link.pass(data);
  CHECK(std::count(link.words.begin() + kSamples / 2, link.words.end(), 0u) ==
        static_cast<std::ptrdiff_t>(link.words.size()) - kSamples / 2);
}

// A row's size tells as much of its bits as directions do, and is for nothing.
TEST_CASE("changes whose rows differ more than their directions stay as they are", "[transform]") {
  const bool differ = GENERATE(false, true);
  CommonDirections data(kChannels, 12, 0.3f);
  TransformedLink link(transforming());
  std::mt19937 random(3);
  std::vector<Values> rows(kSamples / 2);
  for (int epoch = 0; epoch < 12; ++epoch)
    for (std::uint64_t id = 0; id < kSamples; id += 2) {
      Values next = data.rows({id, id + 1});
      Values& before = rows[id / 2];
      if (epoch == 0) before = next;
      // A tenth of the rows changes as the data does, others a hundredth of that.
      for (std::size_t row = 0; row < next.size() / kChannels && differ; ++row) {
        const float part = random() % 10 == 0 ? 1.0f : 0.01f;
        for (int c = 0; c < kChannels; ++c) {
          float& value = next[row * kChannels + c];
          value = before[row * kChannels + c] + part * (value - before[row * kChannels + c]);
        }
      }
      before = next;
      link.cross({id, id + 1}, {kTokens, kTokens}, next);
      link.words.push_back(TransformedLink::word_of(link.sent_bytes));
      data.move();
    }
  CHECK((link.words.back() == 0) == differ);
}

// Levels reach one component of a row at steps from sqrt(C) / 127 on, and what the basis loses is
// little beside what steps err by.
TEST_CASE("fine steps err as they do without a transform", "[transform]") {
  const double step = GENERATE(0.01, 0.04, 0.2, 0.5);
  const int channels = 64;
  CommonDirections data(channels, 4, 0.02f), same(channels, 4, 0.02f);
  TransformedLink with(transforming(Transform::klt, step), MemoryStorage::fp32, channels);
  TransformedLink without(transforming(Transform::none, step), MemoryStorage::fp32, channels);
  for (int epoch = 0; epoch < 12; ++epoch) {
    with.pass(data);
    without.pass(same);
  }
  CHECK((std::count(with.words.begin(), with.words.end(), 2u) > 0) == (step > 0.1));
  const auto [bytes, error] = with.measure(data, 4);
  const auto [plain_bytes, plain_error] = without.measure(same, 4);
  CAPTURE(step, bytes, plain_bytes, error, plain_error);
  CHECK(error < 1.06 * plain_error);
  CHECK(bytes < 1.01 * plain_bytes);
}

TEST_CASE("a transform goes on from its state", "[transform]") {
  const int epochs = GENERATE(1, 3, 5);
  CommonDirections data(kChannels, 3, 0.05f);
  TransformedLink link(transforming());
  for (int epoch = 0; epoch < epochs; ++epoch) link.pass(data);
  TransformedLink other(transforming());
  other.go_on_from(link);
  CommonDirections same = data;
  for (int epoch = 0; epoch < 3; ++epoch) {
    link.pass(data);
    other.pass(same);
    CHECK(link.sent_bytes == other.sent_bytes);
  }
}

TEST_CASE("a payload with an impossible transform is refused and changes nothing", "[transform]") {
  CommonDirections data(kChannels, 3, 0.05f);
  TransformedLink link(transforming());
  const std::vector<int> tokens{kTokens, kTokens - 5};
  // Until a basis comes, which the receiver does not get.
  std::vector<std::uint8_t> with_basis;
  for (int epoch = 0; epoch < 20 && with_basis.empty(); ++epoch)
    for (std::uint64_t id = 0; id < kSamples && with_basis.empty(); id += 2) {
      link.prepare({id, id + 1}, tokens);
      const auto bytes = link.encode(data.rows({id, id + 1}));
      if (epoch > 0 && TransformedLink::word_of(bytes) == 2) {
        with_basis = bytes;
      } else {
        link.decode(bytes);
        ++link.crossing.step;
        data.move();
      }
    }
  REQUIRE(!with_basis.empty());
  const std::size_t word = with_basis.size() - kWord, basis = word - link.basis_bytes();
  const auto kept = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), link.far);
  const auto refused = [&](const std::vector<std::uint8_t>& bytes) {
    CHECK_THROWS_AS(link.decode(bytes), UserError);
    const auto now = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), link.far);
    CHECK(std::equal(kept.data(), kept.data() + kept.size(), now.data()));
  };
  for (const std::uint32_t value : {0u, 1u, 3u, 0xffffffffu}) {
    auto bytes = with_basis;
    std::memcpy(bytes.data() + word, &value, kWord);
    refused(bytes);
  }
  for (const float scale : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
    auto bytes = with_basis;
    std::memcpy(bytes.data() + basis + 4 * 7, &scale, sizeof scale);
    refused(bytes);
  }
  auto too_large = with_basis;
  too_large[basis + 4 * kChannels + 5] = 0x80;
  refused(too_large);
  refused({});
  refused({2, 0, 0, 0});
  refused({with_basis.begin(), with_basis.end() - 1});
  refused({with_basis.begin() + 4, with_basis.end()});
  std::vector<std::uint8_t> without(with_basis.begin(),
                                    with_basis.begin() + static_cast<std::ptrdiff_t>(basis));
  without.insert(without.end(), {1, 0, 0, 0});
  refused(without);  // in a basis that never came
  ++link.crossing.step;
  refused(with_basis);  // which none of this step may bring
  --link.crossing.step;
  link.decode(with_basis);
  const auto near = link.record(link.near, link.crossing.sample_ids[0], BoundarySide::sender);
  CHECK(near == link.record(link.far, link.crossing.sample_ids[0], BoundarySide::receiver));
}

TEST_CASE("components stay finite whatever is sent", "[transform]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bits4);
  CodecSettings settings = transforming();
  settings.transform_interval = 1;
  CommonDirections data(kChannels, 3, 0.05f);
  TransformedLink link(settings, storage);
  for (int epoch = 0; epoch < 3; ++epoch) link.pass(data);
  for (int epoch = 0; epoch < 5; ++epoch)
    for (std::uint64_t id = 0; id < kSamples; id += 2) {
      Values rows = data.rows({id, id + 1});
      const float factor = id == 2 ? 1e37f : id == 4 ? 1e-40f : 1.0f;
      for (float& value : rows) value *= factor;
      rows[epoch] = std::nanf("");
      rows[epoch + 100] = std::numeric_limits<float>::infinity();
      for (const float value : link.cross({id, id + 1}, {kTokens, 3}, rows))
        REQUIRE(std::isfinite(value));
      data.move();
    }
  // And learns other directions. The parts that 4 bits round away lack them.
  if (storage == MemoryStorage::bits4) return;
  link.words.clear();
  CommonDirections later(kChannels, 3, 0.05f, 12);
  for (int epoch = 0; epoch < 60; ++epoch) link.pass(later);
  CHECK(std::count(link.words.begin(), link.words.end(), 2u) > 0);
  CHECK(link.words.back() != 0);
}

TEST_CASE("what tests of both ends send has bases and components in it", "[transform]") {
  for (const EndsCase& test : transformed_ends_cases()) {
    INFO(describe(test.settings) << ", storage " << static_cast<int>(test.storage));
    const EndsRun run = run_sender(test);
    CHECK(run_receiver(test, run.stream).records == run.records);
    const std::array<int, 3> words = last_words(run);
    // Refined second visits have no such word.
    if (test.settings.first_visit == FirstVisit::refine) continue;
    CHECK(words[2] > 0);
    CHECK(words[1] > 0);
  }
}

TEST_CASE("a transform wants predicted changes with one step for a message", "[transform]") {
  CodecSettings settings = transforming();
  CHECK_FALSE(contradiction_in(settings).has_value());
  settings.prediction = Prediction::none;
  CHECK(contradiction_in(settings)->what.find("only predicted changes") != std::string::npos);
  settings = transforming();
  settings.kind = CodecKind::topk_delta;
  CHECK(contradiction_in(settings).has_value());
  settings.kind = CodecKind::quantize;
  settings.prediction = Prediction::none;
  CHECK(contradiction_in(settings)->value == "codec = \"quantize\", transform = \"klt\"");
  CHECK_THROWS_WITH(make_codec(transforming(), {1, 1, 16385}, MemoryStorage::fp32),
                    Catch::Contains("16384"));
  settings = transforming();
  settings.scale = ScaleKind::token;
  CHECK(contradiction_in(settings)->value.find("scale = \"token\"") != std::string::npos);
  settings = transforming();
  settings.transform_interval = 0;
  CHECK_THROWS_WITH(make_codec(settings, {1, 4, 8}, MemoryStorage::fp32),
                    Catch::Contains("transform_interval"));
}
