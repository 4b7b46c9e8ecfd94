// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/base/error.hpp"
#include "core/codec/prediction/drift_prediction.hpp"
#include "core/codec/quantizer/scales.hpp"
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

CodecSettings predicting(Prediction prediction = Prediction::linear, int bits = 3) {
  CodecSettings settings;
  settings.kind = CodecKind::aqsgd;
  settings.bits = bits;
  settings.tile = 16;
  settings.prediction = prediction;
  settings.prediction_interval = 2;
  return settings;
}

/// Activations of samples that change from step to step, by one linear map for all or each by its
/// own random change.
class Drift {
 public:
  explicit Drift(bool common) : common_(common), random_(11) {
    std::normal_distribution<float> normal;
    rows_.resize(static_cast<std::size_t>(kSamples) * kTokens * kChannels);
    map_.resize(static_cast<std::size_t>(kChannels) * kChannels);
    shift_.resize(kChannels);
    for (float& value : rows_) value = normal(random_);
    for (float& value : map_) value = 0.2f * normal(random_) / std::sqrt(float(kChannels));
    for (float& value : shift_) value = 0.1f * normal(random_);
    // Channels of very different size, and one that is a constant.
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (i % kChannels == 3) rows_[i] = 30 + 10 * rows_[i];
      if (i % kChannels == 4) rows_[i] = 1;
    }
  }
  /// Changes all samples.
  void move() {
    std::normal_distribution<float> normal;
    std::vector<float> next = rows_;
    for (std::size_t first = 0; first < rows_.size(); first += kChannels)
      for (int j = 0; j < kChannels; ++j) {
        float change = common_ ? shift_[j] : 0.2f * normal(random_);
        for (int i = 0; common_ && i < kChannels; ++i)
          change += 0.1f * rows_[first + i] * map_[i * kChannels + j];
        next[first + j] += change;
      }
    rows_ = next;
  }
  std::vector<float> rows(const std::vector<std::uint64_t>& ids) const {
    std::vector<float> rows;
    const std::ptrdiff_t size = kTokens * kChannels;
    for (const std::uint64_t id : ids)
      rows.insert(rows.end(), rows_.begin() + static_cast<std::ptrdiff_t>(id) * size,
                  rows_.begin() + static_cast<std::ptrdiff_t>(id + 1) * size);
    return rows;
  }

 private:
  bool common_;
  std::mt19937 random_;
  std::vector<float> rows_, map_, shift_;
};

struct PredictedLink : CodecLink {
  explicit PredictedLink(const CodecSettings& settings, MemoryStorage storage = MemoryStorage::fp32)
      : CodecLink(settings, {2, kTokens, kChannels}, storage, kSamples) {}

  /// One epoch: all samples cross, two at a time, and all drift after each crossing.
  void pass(Drift& drift) {
    for (std::uint64_t id = 0; id < kSamples; id += 2) {
      const std::vector<std::uint64_t> ids{id, id + 1};
      cross(ids, {kTokens, kTokens - 5}, drift.rows(ids));
      bytes.push_back(sent_bytes.size());
      words.push_back(word());
      drift.move();
    }
  }
  /// The last word of the last payload.
  std::uint32_t word() const {
    std::uint32_t value = 0;
    std::memcpy(&value, sent_bytes.data() + sent_bytes.size() - kWord, kWord);
    return value;
  }

  std::vector<std::size_t> bytes;
  std::vector<std::uint32_t> words;
};

std::size_t map_bytes() {
  return codec::DriftMap<std::uint8_t>::size(kChannels);
}

}  // namespace

TEST_CASE("no sum of products of a prediction leaves fp32's integers", "[prediction]") {
  for (int channels = 1; channels <= 20000; ++channels) {
    const std::int64_t largest = codec::largest_input(channels);
    REQUIRE(largest >= 1);
    REQUIRE(largest * codec::kLargestWeight * channels <= std::int64_t{1} << 24);
  }
}

TEST_CASE("predictions are those of integers, to the bit", "[prediction]") {
  const int channels = GENERATE(1, 3, 40, 77, 600, 1041, 1600);
  const int rows = 9;
  const CodecShape shape{3, 3, channels};
  std::mt19937 random(static_cast<unsigned>(channels));
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> weight(-127, 127);
  const auto n = static_cast<std::size_t>(channels);
  std::vector<float> arrays(4 * n), m(rows * n);
  std::vector<std::int8_t> weights((n * n + 3) / 4 * 4);
  for (std::size_t c = 0; c < n; ++c) {
    arrays[c] = normal(random);
    arrays[n + c] = c % 11 == 5 ? 0.0f : std::exp(normal(random));
    arrays[2 * n + c] = 1e-3f * std::exp(3 * normal(random));
    arrays[3 * n + c] = 0.1f * normal(random);
    for (std::size_t i = 0; i < n; ++i)  // the largest sums there can be in two columns
      weights[i * n + c] = static_cast<std::int8_t>(c == 0 ? 127 : c == 1 ? -127 : weight(random));
  }
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t c = 0; c < n; ++c) {
      const float size = row == 3 ? 1e30f : row == 4 ? 1e-38f : row == 5 ? 0.0f : 10.0f;
      m[row * n + c] = row == 2 ? arrays[c] + 5 / arrays[n + c] : size * normal(random);
      if (!std::isfinite(m[row * n + c])) m[row * n + c] = 0;
    }

  codec::DriftPrediction prediction(shape, 1);
  const std::size_t map = codec::DriftMap<std::uint8_t>::size(channels);
  const std::size_t factors = 8;  // of three samples, padded
  const std::array<std::uint16_t, 4> factor{codec::step_at_least(1.0f, 1.0f),
                                            codec::step_at_least(0.37f, 1.0f),
                                            codec::step_at_least(7.9f, 1.0f), 0};
  const std::size_t size = map + factors + kWord;
  const DeviceBytes payload("deltapipe::Test::payload", size);
  const auto bytes = Kokkos::create_mirror_view(payload);
  std::memcpy(bytes.data(), arrays.data(), arrays.size() * sizeof(float));
  std::memcpy(bytes.data() + arrays.size() * sizeof(float), weights.data(), weights.size());
  const std::uint32_t word = 2;
  std::memcpy(bytes.data() + map, factor.data(), factors);
  std::memcpy(bytes.data() + map + factors, &word, kWord);
  Kokkos::deep_copy(payload, bytes);
  copy_to_device<float>(m, VectorRef<float>(prediction.memories().data(), m.size()));
  Crossing crossing;
  crossing.sample_ids = {0, 1, 2};
  REQUIRE(prediction.read(ExecSpace(), crossing, payload.data(), size) == size);
  const float* const p = prediction.predict(ExecSpace(), payload.data(), rows);
  REQUIRE(p != nullptr);
  Kokkos::fence();
  const std::vector<float> found = to_host(VectorRef<const float>(p, m.size()));

  const auto largest = static_cast<float>(codec::largest_input(channels));
  const float most = std::numeric_limits<float>::max();
  for (std::size_t row = 0; row < rows; ++row) {
    std::vector<float> v(n);
    float top = 0;
    for (std::size_t c = 0; c < n; ++c) {
      v[c] = std::clamp((m[row * n + c] - arrays[c]) * arrays[n + c], -most, most);
      top = std::max(top, std::abs(v[c]));
    }
    const float step = top / largest;
    for (std::size_t j = 0; j < n; ++j) {
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const float inverse = step < std::numeric_limits<float>::min() ? 0.0f : 1.0f / step;
        const float u = std::clamp(std::rint(v[i] * inverse), -largest, largest);
        sum += static_cast<std::int64_t>(u) * weights[i * n + j];
      }
      const float scale = step * arrays[2 * n + j];
      const double exact = double(arrays[3 * n + j]) + double(sum) * double(scale);
      const auto change = static_cast<float>(std::clamp<double>(exact, -most, most));
      const double moved = double(codec::float_of_step(factor[row / 3])) * double(change);
      const double expected = std::clamp<double>(m[row * n + j] + moved, -most, most);
      INFO("row " << row << ", channel " << j);
      REQUIRE(found[row * n + j] == static_cast<float>(expected));
    }
  }
}

TEST_CASE("a change that is common to all samples is predicted", "[prediction]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bits8);
  CodecSettings settings = predicting();
  SECTION("packed codes") {}
  SECTION("scales per token") {
    settings.tile = kWholeRow;
  }
  SECTION("scales per channel, asymmetric") {
    settings.scale = ScaleKind::channel;
    settings.levels = Levels::asymmetric;
  }
  SECTION("first visits in fp32") {
    settings.first_visit = FirstVisit::fp32;
  }
  SECTION("entropy coding with steps of the RMS") {
    settings.rms_step = 1;
    settings.entropy_coding = true;
  }
  SECTION("one step for a message") {
    settings.rms_step = 1;
    settings.scale = ScaleKind::message;
    settings.entropy_coding = true;
  }
  INFO("storage " << static_cast<int>(storage));
  Drift drift(true), same(true);
  PredictedLink link(settings, storage);
  settings.prediction = Prediction::none;
  PredictedLink without(settings, storage);
  for (int epoch = 0; epoch < 8; ++epoch) {
    link.pass(drift);
    without.pass(same);
  }
  CHECK(std::count(link.words.begin(), link.words.end(), 2u) > 0);
  link.sender->take_statistics(ExecSpace());
  without.sender->take_statistics(ExecSpace());
  link.sender->measure_errors(true);
  without.sender->measure_errors(true);
  for (int epoch = 0; epoch < 2; ++epoch) {
    link.pass(drift);
    without.pass(same);
  }
  const CodecStatistics with = link.sender->take_statistics(ExecSpace());
  const CodecStatistics none = without.sender->take_statistics(ExecSpace());
  INFO("left " << with.rest2 / with.change2 << ", errors " << with.error2 / none.error2);
  CHECK(none.change2 == 0);
  // Memories of 8 bits have errors of their own.
  CHECK(with.rest2 < (storage == MemoryStorage::bits8 ? 0.1 : 0.05) * with.change2);
  CHECK(with.error2 < (storage == MemoryStorage::bits8 ? 0.3 : 0.1) * none.error2);
}

TEST_CASE("changes that have nothing in common cost a word and nothing else", "[prediction]") {
  Drift drift(false), same(false);
  PredictedLink link(predicting());
  PredictedLink without(predicting(Prediction::none));
  for (int epoch = 0; epoch < 6; ++epoch) {
    link.pass(drift);
    without.pass(same);
  }
  for (std::size_t i = 0; i < link.bytes.size(); ++i) {
    INFO("crossing " << i);
    // First visits lack even that.
    CHECK(link.bytes[i] == without.bytes[i] + (i < kSamples / 2 ? 0 : kWord));
    if (i >= kSamples / 2) CHECK(link.words[i] == 0);
  }
  for (std::uint64_t id = 0; id < kSamples; ++id) CHECK(link.floats(id) == without.floats(id));
  const CodecStatistics statistics = link.sender->take_statistics(ExecSpace());
  CHECK(statistics.change2 > 0);
  CHECK(statistics.rest2 == statistics.change2);
}

TEST_CASE("maps come in the first micro-batch of every few steps", "[prediction]") {
  CodecSettings settings = predicting();
  settings.prediction_interval = 4;
  Drift drift(true);
  PredictedLink link(settings);
  for (int epoch = 0; epoch < 8; ++epoch) link.pass(drift);
  int maps = 0;
  for (std::size_t step = kSamples / 2; step < link.words.size(); ++step) {
    INFO("step " << step);
    if (link.words[step] == 2) {
      CHECK(step % 4 == 0);
      ++maps;
    }
  }
  CHECK(maps > 0);
  Crossing crossing = link.crossing;
  crossing.step = 8;
  const std::size_t with = link.sender->payload_bytes(crossing);
  CHECK(with <= link.sender->max_payload_bytes());
  crossing.step = 9;
  CHECK(link.sender->payload_bytes(crossing) == with - map_bytes());
  crossing.step = 8;
  crossing.micro_batch = 1;
  CHECK(link.sender->payload_bytes(crossing) == with - map_bytes());
  crossing.visits = {0, 0};
  const std::size_t first = link.sender->payload_bytes(crossing);
  crossing.micro_batch = 0;
  CHECK(link.sender->payload_bytes(crossing) == first);
}

TEST_CASE("a payload with an impossible prediction is refused and changes nothing",
          "[prediction]") {
  Drift drift(true);
  PredictedLink link(predicting());
  const std::vector<std::uint64_t> ids{0, 1};
  const std::vector<int> tokens{kTokens, kTokens - 5};
  // Until a map comes, which the receiver does not get.
  std::vector<std::uint8_t> with_map;
  for (int epoch = 0; epoch < 20 && with_map.empty(); ++epoch)
    for (std::uint64_t id = 0; id < kSamples && with_map.empty(); id += 2) {
      link.prepare({id, id + 1}, tokens);
      const auto bytes = link.encode(drift.rows({id, id + 1}));
      link.sent_bytes = bytes;
      if (epoch > 0 && link.word() == 2) {
        with_map = bytes;
      } else {
        link.decode(bytes);
        ++link.crossing.step;
        drift.move();
      }
    }
  REQUIRE(!with_map.empty());
  const std::size_t word = with_map.size() - kWord;
  const std::size_t factors = word - 4;  // of two samples
  const std::size_t map = factors - map_bytes();
  const auto kept = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), link.far);
  const auto refused = [&](std::vector<std::uint8_t> bytes) {
    CHECK_THROWS_AS(link.decode(bytes), UserError);
    const auto now = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), link.far);
    CHECK(std::equal(kept.data(), kept.data() + kept.size(), now.data()));
  };
  const auto with_word = [&](std::uint32_t value) {
    auto bytes = with_map;
    std::memcpy(bytes.data() + word, &value, kWord);
    return bytes;
  };
  const auto with_float = [&](std::size_t array, float value) {
    auto bytes = with_map;
    std::memcpy(bytes.data() + map + 4 * (array * kChannels + 7), &value, sizeof value);
    return bytes;
  };
  refused(with_word(3));
  refused(with_word(0xffffffffu));
  refused(with_word(0));  // a map's bytes are too many
  refused(with_word(1));
  for (std::size_t array = 0; array < 4; ++array) {
    refused(with_float(array, std::nanf("")));
    refused(with_float(array, -std::numeric_limits<float>::infinity()));
  }
  auto factor = with_map;
  factor[factors + 1] = 0xff;  // an infinity
  refused(factor);
  factor[factors + 1] = 0x83;  // 16
  refused(factor);
  auto too_large = with_map;
  too_large[map + 16 * kChannels + 5] = 0x80;
  refused(too_large);
  refused({});
  refused({1, 0});
  refused({2, 0, 0, 0});
  refused({with_map.begin(), with_map.end() - 1});
  refused({with_map.begin() + 4, with_map.end()});
  // Predicted by a map that never came.
  std::vector<std::uint8_t> without_map(with_map.begin(),
                                        with_map.begin() + static_cast<std::ptrdiff_t>(map));
  without_map.insert(without_map.end(), {0, 0, 0, 0, 1, 0, 0, 0});
  refused(without_map);
  // In another micro-batch there can be none.
  link.crossing.micro_batch = 1;
  refused(with_map);
  link.crossing.micro_batch = 0;
  link.decode(with_map);
  const auto near = link.record(link.near, link.crossing.sample_ids[0], BoundarySide::sender);
  CHECK(near == link.record(link.far, link.crossing.sample_ids[0], BoundarySide::receiver));
}

TEST_CASE("a prediction goes on from its state", "[prediction]") {
  const int epochs = GENERATE(1, 2, 4);
  Drift drift(true);
  PredictedLink link(predicting());
  for (int epoch = 0; epoch < epochs; ++epoch) link.pass(drift);
  PredictedLink other(predicting());
  other.go_on_from(link);
  Drift same = drift;
  for (int epoch = 0; epoch < 3; ++epoch) {
    link.pass(drift);
    other.pass(same);
    CHECK(link.sent_bytes == other.sent_bytes);
  }
  CHECK(std::vector<std::uint32_t>(link.words.end() - 9, link.words.end()) == other.words);
}

TEST_CASE("predictions stay finite whatever is sent", "[prediction]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bits4);
  CodecSettings settings = predicting();
  settings.prediction_interval = 1;
  CodecLink link(settings, {1, 1, 40}, storage);
  check_hostile_values(link, storage);

  Drift drift(true);
  PredictedLink large(settings, storage);
  std::vector<float> rows;
  for (int epoch = 0; epoch < 5; ++epoch)
    for (std::uint64_t id = 0; id < kSamples; id += 2) {
      rows = drift.rows({id, id + 1});
      const float factor = id == 2 ? 1e37f : id == 4 ? 1e-40f : 1.0f;
      for (float& value : rows) value *= factor;
      rows[epoch] = std::nanf("");
      rows[epoch + 100] = std::numeric_limits<float>::infinity();
      for (const float value : large.cross({id, id + 1}, {kTokens, 3}, rows))
        REQUIRE(std::isfinite(value));
      drift.move();
    }
}

// Products of such changes are no numbers in fp32, and sums that had one would never lose it.
TEST_CASE("one change of the largest numbers ends no prediction", "[prediction]") {
  const float largest = GENERATE(1e18f, 3e38f, -3e38f);
  Drift drift(true);
  PredictedLink link(predicting(Prediction::linear, 8));
  link.pass(drift);
  std::vector<float> rows = drift.rows({0, 1});
  rows[3 * kChannels + 7] = largest;
  link.cross({0, 1}, {kTokens, kTokens}, rows);
  link.words.clear();
  for (int epoch = 0; epoch < 8; ++epoch) link.pass(drift);
  CHECK(std::count(link.words.begin(), link.words.end(), 2u) > 0);
  CHECK(link.words.back() != 0);
}

TEST_CASE("what tests of both ends send has maps and predictions in it", "[prediction]") {
  for (const EndsCase& test : predicted_ends_cases()) {
    INFO(describe(test.settings) << ", storage " << static_cast<int>(test.storage));
    const EndsRun run = run_sender(test);
    CHECK(run_receiver(test, run.stream).records == run.records);
    const std::array<int, 3> words = last_words(run);
    CHECK(words[2] > 0);
    CHECK(words[1] > 0);
  }
}

TEST_CASE("only delta predicts", "[prediction]") {
  for (const CodecKind kind :
       {CodecKind::fp16, CodecKind::directq, CodecKind::topk, CodecKind::aqsgd_topk}) {
    CodecSettings settings = predicting();
    settings.kind = kind;
    const auto mistake = contradiction_in(settings);
    REQUIRE(mistake);
    CHECK(mistake->value.find("prediction") != std::string::npos);
  }
  CHECK(!contradiction_in(predicting()));
  CodecSettings baseline = predicting();  // a deck whose codec an override turned off
  baseline.kind = CodecKind::none;
  CHECK(!contradiction_in(baseline));
  CodecSettings settings = predicting();
  settings.prediction_interval = 0;
  CHECK_THROWS_AS(make_codec(settings, {1, 2, 8}, MemoryStorage::fp32), UserError);
  const auto id = [](const CodecSettings& of) {
    return make_codec(of, {1, 2, 8}, MemoryStorage::fp32)->id();
  };
  CHECK(id(predicting()) != id(predicting(Prediction::none)));
  settings.prediction_interval = 7;
  CHECK(id(predicting()) != id(settings));
}
