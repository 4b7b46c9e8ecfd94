// SPDX-License-Identifier: BSD-3-Clause
// Values that codecs send in evaluations: the bytes that they send of a sample without memory, or
// the plain C(x). No memory is read or changed.
#include "core/codec/algorithms/without_memory.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "core/codec/codec.hpp"
#include "support/codec_link.hpp"
#include "support/codec_reference.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

constexpr ChangesWithoutMemory kFirstVisit = ChangesWithoutMemory::first_visit;
constexpr ChangesWithoutMemory kDirect = ChangesWithoutMemory::direct;
constexpr CodecShape kShape{2, 5, 70};

/// Crossing of two samples, the second one shorter.
const std::vector<std::uint64_t> kIds = {4, 1};
const std::vector<int> kLengths = {5, 3};

std::vector<float> activations() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(kShape.max_samples) * kShape.tokens *
                       kShape.channels);
  for (float& value : x) value = normal(random);
  return x;
}

struct Sent {
  std::vector<std::uint8_t> payload;
  std::vector<float> seen;
};

Sent send(const CodecSettings& settings, bool training, std::uint64_t step = 3,
          std::uint64_t seed = 11) {
  CodecLink link(settings, kShape, MemoryStorage::fp32, 5);
  link.crossing.training = training;
  link.crossing.step = step;
  link.crossing.seed = seed;
  link.prepare(kIds, kLengths);
  Sent sent;
  sent.payload = link.encode(activations());
  sent.seen = link.decode(sent.payload);
  return sent;
}

void check_same(const CodecSettings& evaluated, const CodecSettings& expected) {
  INFO(describe(expected));
  CHECK(make_codec(evaluated, kShape, MemoryStorage::fp32)->record() == RecordLayout{});
  const Sent a = send(evaluated, true), b = send(expected, true);
  CHECK(a.seen == b.seen);
  CHECK(a.payload == b.payload);
}

CodecSettings codec(CodecKind kind, int bits = 3) {
  CodecSettings settings;
  settings.kind = kind;
  settings.bits = bits;
  settings.tile = 16;
  settings.topk = 0.2;
  settings.warmup_epochs = 2;
  return settings;
}

CodecSettings after_warmup(CodecSettings settings) {
  settings.warmup_epochs = 0;
  return settings;
}

}  // namespace

TEST_CASE("codecs without memory evaluate as they train, except for warm-up",
          "[codec][evaluation]") {
  const auto kind = GENERATE(CodecKind::none, CodecKind::fp16, CodecKind::bf16, CodecKind::directq,
                             CodecKind::topk);
  const CodecSettings settings = codec(kind);
  for (const auto changes : {kFirstVisit, kDirect})
    CHECK(without_memory(settings, changes) == after_warmup(settings));
}

TEST_CASE("one step for a message becomes one for each token in evaluations",
          "[codec][evaluation]") {
  CodecSettings settings = codec(CodecKind::directq);
  settings.scale = ScaleKind::message;
  settings.rms_step = 0.5;
  CodecSettings expected = after_warmup(settings);
  expected.scale = ScaleKind::tile;
  expected.tile = kWholeRow;
  CHECK(without_memory(settings, kFirstVisit) == expected);
  CHECK(sends_tokens_alone(expected));
}

TEST_CASE("error feedback becomes the plain codec in evaluations", "[codec][evaluation]") {
  const auto kind = GENERATE(CodecKind::directq, CodecKind::topk);
  const auto feedback = GENERATE(FeedbackKind::ef, FeedbackKind::ef21, FeedbackKind::mixed);
  if (kind == CodecKind::directq && feedback == FeedbackKind::mixed) return;
  CodecSettings settings = codec(kind);
  settings.error_feedback = true;
  settings.feedback_kind = feedback;
  const CodecSettings evaluated = without_memory(settings, kFirstVisit);
  check_same(evaluated, after_warmup(codec(kind)));
  // Errors and memories of zeros: the sample's first visit.
  check_same(evaluated, after_warmup(settings));
}

TEST_CASE("changes become first visits in evaluations", "[codec][evaluation]") {
  CodecSettings settings = codec(GENERATE(CodecKind::aqsgd, CodecKind::aqsgd_topk), 3);
  settings.first_visit = GENERATE(FirstVisit::fp32, FirstVisit::quantize8);
  settings.rounding = GENERATE(Rounding::nearest, Rounding::stochastic);
  settings.values = ChosenValues::codes;
  check_same(without_memory(settings, kFirstVisit), after_warmup(settings));
}

TEST_CASE("entropy-coded changes become first visits or values in evaluations",
          "[codec][evaluation]") {
  CodecSettings settings = codec(CodecKind::aqsgd, 3);
  settings.entropy_coding = true;
  settings.rms_step = GENERATE(0.0, 1.0);
  settings.first_visit = GENERATE(FirstVisit::fp32, FirstVisit::quantize8);
  // Payloads count their groups of codes, and changes have more groups.
  const CodecSettings first = without_memory(settings, kFirstVisit);
  CHECK(send(first, true).seen == send(after_warmup(settings), true).seen);
  CodecSettings expected = after_warmup(settings);
  expected.kind = CodecKind::directq;
  check_same(without_memory(settings, kDirect), expected);
}

TEST_CASE("changes become directq or topk in direct evaluations", "[codec][evaluation]") {
  CodecSettings settings = codec(CodecKind::aqsgd, 4);
  settings.scale = GENERATE(ScaleKind::channel, ScaleKind::tile);
  settings.levels = GENERATE(Levels::symmetric, Levels::asymmetric);
  CodecSettings expected = after_warmup(settings);
  expected.kind = CodecKind::directq;
  check_same(without_memory(settings, kDirect), expected);
  CodecSettings whole = settings;  // without a memory, the step is relative to nothing
  whole.scale = ScaleKind::message;
  CHECK(without_memory(whole, kDirect).scale == ScaleKind::tile);
  CHECK(without_memory(whole, kDirect).tile == kWholeRow);
  if (settings.scale != ScaleKind::tile) return;
  settings.kind = CodecKind::aqsgd_topk;
  expected.kind = CodecKind::topk;
  settings.values = expected.values = GENERATE(ChosenValues::fp16, ChosenValues::codes);
  check_same(without_memory(settings, kDirect), expected);
}

TEST_CASE("stochastic rounding of evaluations has its own random numbers", "[codec][evaluation]") {
  CodecSettings settings = after_warmup(codec(CodecKind::directq));
  settings.rounding = Rounding::stochastic;
  const Sent sent = send(settings, false);
  CHECK(send(settings, false).payload == sent.payload);
  CHECK(send(settings, true).payload != sent.payload);
  CHECK(send(settings, false, 4).payload != sent.payload);
  CHECK(send(settings, false, 3, 12).payload != sent.payload);
}
