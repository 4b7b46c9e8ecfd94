// SPDX-License-Identifier: BSD-3-Clause
// Both ends of a boundary agree on codecs, memories and arithmetic, or detect that they do not.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/base/parallel/floating_point.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/codec/algorithms/recommended.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/settings_check.hpp"
#include "support/codec_link.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

/// Calls use() with every combination of the settings that ends must share and that makes a codec.
template <class Use>
void for_all_settings(const Use& use) {
  CodecSettings s;
  for (const CodecKind kind :
       {CodecKind::directq, CodecKind::aqsgd, CodecKind::topk, CodecKind::aqsgd_topk})
    for (const double rms_step : {0.0, 1.0})
      for (const bool entropy : {false, true})
        for (const ScaleKind scale : {ScaleKind::channel, ScaleKind::tile, ScaleKind::message})
          for (const ChosenValues values : {ChosenValues::fp16, ChosenValues::codes})
            for (const ChosenPositions positions :
                 {ChosenPositions::largest, ChosenPositions::forward})
              for (const int feedback : {-1, 0, 1, 2})
                for (const FeedbackOf of : {FeedbackOf::sample, FeedbackOf::position})
                  for (const FirstVisit first : {FirstVisit::fp32, FirstVisit::quantize8}) {
                    s.kind = kind;
                    s.rms_step = rms_step;
                    s.entropy_coding = entropy;
                    s.scale = scale;
                    s.values = values;
                    s.positions = positions;
                    s.error_feedback = feedback >= 0;
                    s.feedback_kind = static_cast<FeedbackKind>(std::max(0, feedback));
                    s.feedback_of = of;
                    s.first_visit = first;
                    if (!contradiction_in(s)) use(s);
                  }
}

}  // namespace

TEST_CASE("codecs that differ have different ids", "[codec]") {
  std::map<std::uint32_t, std::string> payloads;
  int codecs = 0;
  const auto add = [&](const std::string& text, std::uint32_t id) {
    const auto [place, is_new] = payloads.emplace(id, text);
    INFO(place->second << " and " << text);
    CHECK((is_new || place->second == text));
    ++codecs;
  };
  for_all_settings([&](const CodecSettings& s) {
    for (const MemoryStorage storage :
         {MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16, MemoryStorage::bits8}) {
      const bool positions = sends_positions(s), feedback = has_feedback(s);
      std::string text = kCodecKindNames[static_cast<std::size_t>(s.kind)];
      const auto note = [&](const char* name, auto value) {
        text += std::string(" ") + name + std::to_string(static_cast<int>(value));
      };
      if (sends_codes(s) || sends_changes(s)) {
        note("scale", s.scale);
        note("rule", s.rms_step > 0);
        note("entropy", s.entropy_coding);
      }
      if (positions) note("values", s.values);
      if (positions) note("positions", s.positions);
      if (feedback) note("feedback", s.feedback_kind);
      if (feedback) note("of", s.feedback_of);
      if (sends_changes(s)) note("first", s.first_visit);
      if (has_shared_memory(s)) note("storage", storage);
      add(text, codec::settings_hash(s, {1, 2, 3}, storage, 1));
    }
  });
  CHECK(codecs > 1000);
}

TEST_CASE("ends with other visits or at another epoch have other hashes", "[codec]") {
  CodecSettings settings;
  settings.kind = GENERATE(CodecKind::aqsgd, CodecKind::aqsgd_topk);
  settings.warmup_epochs = GENERATE(0, 2);
  const auto codec = make_codec(settings, {2, 4, 8}, MemoryStorage::fp16);
  Crossing crossing;
  crossing.epoch = 7;
  crossing.sample_ids = {1, 2};
  crossing.tokens = {4, 4};
  crossing.visits = {3, 5};
  const std::uint32_t here = codec->state_hash(crossing);
  CHECK(codec->state_hash(crossing) == here);
  crossing.visits = {3, 6};
  CHECK(codec->state_hash(crossing) != here);
  crossing.visits = {3, 5};
  if (settings.warmup_epochs > 0) {
    crossing.epoch = 1.5;
    CHECK(codec->state_hash(crossing) != here);
  }
  // If only the sender adds errors, the receiver knows no visits.
  settings = {};
  settings.kind = CodecKind::directq;
  settings.error_feedback = true;
  const auto feedback = make_codec(settings, {2, 4, 8}, MemoryStorage::fp16);
  const std::uint32_t sender = feedback->state_hash(crossing);
  crossing.visits = {0, 0};
  CHECK(feedback->state_hash(crossing) == sender);
}

#if defined(__SSE__)
TEST_CASE("codecs compute the same in every floating-point mode of the thread", "[codec]") {
  // FTZ and DAZ; rounding down, up and to zero; and all of these.
  const FloatingPointMode other = GENERATE(0x8040, 0x2000, 0x4000, 0x6000, 0xe040);
  const bool at_sender = GENERATE(true, false);
  const int threads = GENERATE(1, 3);
  HostTeam& team = HostTeam::instance();
  const int usual_threads = team.size();
  team.resize(threads);
  CodecSettings settings;
  settings.bits = 3;
  std::vector<CodecSettings> all(7, settings);
  all[0].kind = CodecKind::aqsgd;
  all[1].kind = CodecKind::directq;
  all[1].error_feedback = true;
  all[2].kind = CodecKind::aqsgd_topk;
  all[3].kind = CodecKind::aqsgd;
  all[3].rounding = Rounding::stochastic;
  all[4] = recommended_settings(Direction::forward);
  all[5].kind = CodecKind::fp16;
  all[6].kind = CodecKind::bf16;
  for (const CodecSettings& s : all)
    for (const float size : {1.0f, 3e-38f}) {
      CAPTURE(other, at_sender, threads, kCodecKindNames[static_cast<std::size_t>(s.kind)], size);
      CodecLink usual(s, {1, 5, 130}, MemoryStorage::bits8),
          odd(s, {1, 5, 130}, MemoryStorage::bits8);
      std::mt19937 random(3);
      std::normal_distribution<float> normal;
      std::vector<float> x(5 * 130);
      for (float& value : x) value = size * normal(random);
      for (int visit = 0; visit < 3; ++visit) {
        for (float& value : x) value += 0.3f * size * normal(random);
        const std::vector<float> expected = usual.cross({0}, {5}, x);
        odd.prepare({0}, {5});
        std::vector<std::uint8_t> payload;
        {
          const FloatingPointScope mode(at_sender ? floating_point_mode() | other
                                                  : floating_point_mode());
          payload = odd.encode(x);
        }
        std::vector<float> seen;
        {
          const FloatingPointScope mode(at_sender ? floating_point_mode()
                                                  : floating_point_mode() | other);
          seen = odd.decode(payload);
        }
        ++odd.crossing.step;
        CHECK(payload == usual.sent_bytes);
        CHECK(std::memcmp(seen.data(), expected.data(), seen.size() * sizeof(float)) == 0);
        CHECK(odd.record(odd.near, 0, BoundarySide::sender) ==
              usual.record(usual.near, 0, BoundarySide::sender));
        CHECK(odd.record(odd.far, 0, BoundarySide::receiver) ==
              usual.record(usual.far, 0, BoundarySide::receiver));
      }
    }
  team.resize(usual_threads);
}
#endif
