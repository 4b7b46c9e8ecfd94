// SPDX-License-Identifier: BSD-3-Clause
// Every codec reports values that cannot cross, and boundaries refuse them by name.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "comm/boundary/value_check.hpp"
#include "core/base/error.hpp"
#include "core/codec/algorithms/recommended.hpp"
#include "core/codec/algorithms/without_memory.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "support/codec_link.hpp"

using namespace deltapipe;
using namespace deltapipe::test;
using Catch::Matchers::Contains;

namespace {

constexpr int kTokens = 3, kChannels = 70;
using Change = void (*)(CodecSettings&);

CodecSettings settings_of(CodecKind kind, Change change) {
  CodecSettings settings;
  settings.kind = kind;
  settings.bits = 3;
  change(settings);
  return settings;
}

/// Returns settings with every kind of payload and of memory.
std::vector<CodecSettings> all_settings() {
  using S = CodecSettings;
  std::vector<CodecSettings> all;
  const auto add = [&](
                       CodecKind kind, Change change = [](S&) {}) {
    all.push_back(settings_of(kind, change));
  };
  add(CodecKind::none);
  add(CodecKind::fp16);
  add(CodecKind::bf16);
  for (const CodecKind kind : {CodecKind::directq, CodecKind::aqsgd}) {
    add(kind);
    add(kind, [](S& s) { s.scale = ScaleKind::channel; });
    add(kind, [](S& s) { s.rounding = Rounding::stochastic; });
    add(kind, [](S& s) { s.levels = Levels::asymmetric; });
    add(kind, [](S& s) { s.entropy_coding = true; });
    add(kind, [](S& s) { s.warmup_epochs = 1; });
  }
  for (const CodecKind kind : {CodecKind::topk, CodecKind::aqsgd_topk}) {
    add(kind);
    add(kind, [](S& s) { s.values = ChosenValues::fp32; });
    add(kind, [](S& s) { s.values = ChosenValues::codes; });
  }
  for (const CodecKind kind : {CodecKind::directq, CodecKind::topk}) {
    add(kind, [](S& s) { s.error_feedback = true; });
    add(kind, [](S& s) {
      s.error_feedback = true;
      s.feedback_kind = FeedbackKind::ef21;
    });
  }
  add(CodecKind::topk, [](S& s) {
    s.error_feedback = true;
    s.feedback_kind = FeedbackKind::mixed;
  });
  for (const FirstVisit first : {FirstVisit::fp32, FirstVisit::quantize8}) {
    add(CodecKind::aqsgd);
    all.back().first_visit = first;
  }
  all.push_back(recommended_settings(Direction::forward));
  all.push_back(recommended_settings(Direction::backward));
  all.push_back(
      without_memory(recommended_settings(Direction::forward), ChangesWithoutMemory::direct));
  return all;
}

std::vector<float> usual_values() {
  std::vector<float> x(kTokens * kChannels);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i));
  return x;
}

}  // namespace

TEST_CASE("every codec reports NaN and infinities, at first and later visits", "[codec]") {
  const float inf = std::numeric_limits<float>::infinity();
  for (const CodecSettings& settings : all_settings())
    for (const bool measures : {false, true})
      for (const float bad : {std::nanf(""), inf, -inf})
        for (const int bad_visit : {0, 1, 2}) {
          CAPTURE(kCodecKindNames[static_cast<std::size_t>(settings.kind)], settings.error_feedback,
                  static_cast<int>(settings.feedback_kind), static_cast<int>(settings.first_visit),
                  measures, bad, bad_visit);
          CodecLink link(settings, {1, kTokens, kChannels}, MemoryStorage::fp16);
          link.sender->measure_errors(measures);
          for (int visit = 0; visit <= bad_visit; ++visit) {
            std::vector<float> x = usual_values();
            for (float& value : x) value += 0.1f * static_cast<float>(visit);
            if (visit == bad_visit) x[kTokens * kChannels - 1] = bad;
            link.prepare({0}, {kTokens});
            link.crossing.epoch = visit;
            link.encode(x);
            CHECK(link.sender->lost_values() == (visit == bad_visit));
          }
          link.sender->take_statistics(ExecSpace());
          CHECK_FALSE(link.sender->lost_values());
        }
}

TEST_CASE("padding is not checked", "[codec]") {
  CodecLink link(settings_of(CodecKind::aqsgd, [](CodecSettings&) {}), {1, kTokens, kChannels},
                 MemoryStorage::fp16);
  std::vector<float> x = usual_values();
  x.back() = std::nanf("");
  link.prepare({0}, {kTokens - 1});
  link.encode(x);
  CHECK_FALSE(link.sender->lost_values());
}

TEST_CASE("numbers that leave a format's range are reported, and others are not", "[codec]") {
  using Case = std::tuple<CodecKind, MemoryStorage, float, bool>;
  const auto [kind, storage, value, is_lost] =
      GENERATE(Case{CodecKind::aqsgd, MemoryStorage::fp16, 1e5f, true},
               Case{CodecKind::aqsgd, MemoryStorage::fp16, -65504.0f, false},
               Case{CodecKind::aqsgd, MemoryStorage::bf16, 1e5f, false},
               Case{CodecKind::aqsgd, MemoryStorage::bits4, 1e5f, false},
               Case{CodecKind::aqsgd_topk, MemoryStorage::fp16, 1e5f, true},
               Case{CodecKind::aqsgd_topk, MemoryStorage::fp32, 1e5f, false},
               Case{CodecKind::directq, MemoryStorage::fp16, 1e38f, false},
               Case{CodecKind::fp16, MemoryStorage::fp16, 1e5f, false},  // rows have powers of two
               Case{CodecKind::bf16, MemoryStorage::fp16, 3.397e38f, true},
               Case{CodecKind::bf16, MemoryStorage::fp16, 3.38e38f, false},
               Case{CodecKind::none, MemoryStorage::fp16, 3.4e38f, false});
  CAPTURE(kCodecKindNames[static_cast<std::size_t>(kind)], static_cast<int>(storage), value);
  CodecLink link(settings_of(kind, [](CodecSettings&) {}), {1, kTokens, kChannels}, storage);
  std::vector<float> x = usual_values();
  x[5] = value;
  for (int visit = 0; visit < 2; ++visit) {
    link.cross({0}, {kTokens}, x);
    CHECK(link.sender->lost_values() == is_lost);
  }
}

TEST_CASE("a refusal names stage, boundary, step, sample, value and remedy", "[codec]") {
  Crossing crossing;
  crossing.kind = GENERATE(CrossingKind::activation, CrossingKind::gradient);
  crossing.boundary = 2;
  crossing.step = 11;
  crossing.micro_batch = 3;
  crossing.sample_ids = {40, 17};
  crossing.tokens = {kTokens, kTokens - 1};
  crossing.training = GENERATE(true, false);
  const Matrix<float> x("deltapipe::Test::x", 2 * kTokens, kChannels);
  const auto message = [&](int row, int channel, float value, bool keeps_halves) {
    const auto host = Kokkos::create_mirror_view(x);
    Kokkos::deep_copy(host, 1.0f);
    host(2, 5) = 7e4f;
    host(row, channel) = value;
    Kokkos::deep_copy(x, host);
    try {
      refuse_values(crossing, x, kTokens, keeps_halves);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
  };
  const bool backward = crossing.kind == CrossingKind::gradient;
  const std::string nonfinite = message(4, 69, std::nanf(""), true);
  CHECK_THAT(nonfinite,
             Contains(backward ? "stage 3 sends gradients that are no longer finite over boundary "
                                 "2 backward"
                               : "stage 2 sends activations that are no longer finite over "
                                 "boundary 2 forward") &&
                 Contains("12, micro-batch 3: sample 17, token 1, channel 69 (got nan)"));
  CHECK_THAT(nonfinite, Contains(crossing.training ? "lower training.optimizer.learning_rate"
                                                   : "use weights from before that"));
  CHECK_THAT(message(1, 0, 1e5f, true),
             Contains("too large for fp16 memories") &&
                 Contains("sample 40, token 1, channel 0 (got 100000)") &&
                 Contains("set cache.storage = \"bf16\""));
  CHECK_THAT(message(1, 0, 3.4e38f, false), Contains("too large to cross"));
}
