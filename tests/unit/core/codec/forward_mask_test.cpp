// SPDX-License-Identifier: BSD-3-Clause
// Gradients at the positions of their activations (arXiv 2401.07788: the forward's mask), sent
// without positions.
#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <memory>

#include "core/base/error.hpp"
#include "core/codec/codec.hpp"
#include "support/codec_link.hpp"
#include "support/drifting_samples.hpp"
#include "support/topk_reference.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

CodecSettings topk(double part) {
  CodecSettings settings;
  settings.kind = CodecKind::topk;
  settings.topk = part;
  settings.values = ChosenValues::fp32;
  return settings;
}

CodecSettings with_feedback(CodecSettings settings, FeedbackKind kind) {
  settings.error_feedback = true;
  settings.feedback_kind = kind;
  return settings;
}

CodecSettings topk_delta(double part, FirstVisit first_visit) {
  CodecSettings settings = topk(part);
  settings.kind = CodecKind::aqsgd_topk;
  settings.first_visit = first_visit;
  return settings;
}

CodecSettings following(CodecSettings settings) {
  settings.positions = ChosenPositions::forward;
  return settings;
}

/// Both directions of a boundary.
struct TwoWayLink {
  TwoWayLink(const CodecSettings& activations, const CodecSettings& gradients, int slots = 1,
             const CodecShape& shape = kShape, int samples = 3)
      : forward(activations, shape, MemoryStorage::fp32, samples),
        backward(gradients, shape, MemoryStorage::fp32, samples) {
    for (auto [out, in] : {std::pair{&forward.sender, &backward.receiver},
                           std::pair{&forward.receiver, &backward.sender}}) {
      const auto masks = make_forward_masks(activations, gradients, shape, slots);
      (*out)->share(masks);
      (*in)->share(masks);
    }
    backward.crossing.kind = CrossingKind::gradient;
    backward.payload = DeviceBytes(CodecLink::label(), backward.sender->max_payload_bytes());
  }
  CodecLink forward, backward;
};

/// Returns x where a and b differ, and zeros elsewhere.
Floats where_different(const Floats& a, const Floats& b, const Floats& x) {
  Floats chosen(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    if (a[i] != b[i]) chosen[i] = x[i];
  return chosen;
}

Floats gradients_of(std::uint64_t id, int step) {
  return values_of(id, step + 50);
}

}  // namespace

TEST_CASE("gradients are sent at the positions of their activations", "[codec][topk][mask]") {
  const int forward_kind = GENERATE(0, 1, 2, 3, 4);
  const int backward_kind = GENERATE(0, 1, 2);
  const double forward_part = GENERATE(0.1, 0.6);
  CAPTURE(forward_kind, backward_kind, forward_part);
  CodecSettings activations = topk(forward_part);
  if (forward_kind == 1) activations = with_feedback(activations, FeedbackKind::ef);
  if (forward_kind == 2) activations = with_feedback(activations, FeedbackKind::ef21);
  if (forward_kind == 3) activations = topk_delta(forward_part, FirstVisit::fp32);
  if (forward_kind == 4) activations = with_feedback(activations, FeedbackKind::mixed);
  const bool has_memory = forward_kind == 2 || forward_kind == 3;
  CodecSettings gradients = following(topk(0.25));
  if (backward_kind == 1) gradients = with_feedback(gradients, FeedbackKind::ef);
  if (backward_kind == 2) gradients = with_feedback(gradients, FeedbackKind::ef21);
  TwoWayLink link(activations, gradients);

  std::map<std::uint64_t, Floats> memory, kept;
  std::map<std::uint64_t, int> visits;
  for (int step = 0; step < static_cast<int>(kSteps.size()); ++step) {
    const auto& ids = kSteps[static_cast<std::size_t>(step)];
    const Floats seen = link.forward.cross(ids, tokens_of(ids), rows_of(ids, step));
    const Floats back = link.backward.cross(ids, tokens_of(ids), rows_of(ids, step + 50));
    std::size_t expected_bytes = 12 * ids.size();
    for (std::size_t b = 0; b < ids.size(); ++b) {
      const std::uint64_t id = ids[b];
      const Floats g = gradients_of(id, step);
      const std::size_t n = g.size();
      CAPTURE(step, id);
      Floats& m = memory[id];
      Floats& e = kept[id];
      m.resize(n);
      e.resize(n);
      const Floats x = sample_of(seen, b, n);
      const bool is_dense = forward_kind == 3 && visits[id] == 0;
      const Floats wanted = sum(g, e, backward_kind == 2 ? -1.0f : 1.0f);
      const Floats sent = is_dense ? naive_sparse(wanted, naive_k(0.25, n))
                                   : where_different(has_memory ? m : Floats(n), x, wanted);
      const Floats expected = backward_kind == 2 ? sum(e, sent) : sent;
      REQUIRE(sample_of(back, b, n) == expected);
      for (std::size_t i = n; i < kSampleValues; ++i) REQUIRE(back[b * kSampleValues + i] == 0);
      if (backward_kind == 1) e = sum(wanted, sent, -1.0f);
      if (backward_kind == 2) e = expected;
      m = x;
      ++visits[id];
      const TopKHeader header = header_at(link.backward.sent_bytes, b);
      CHECK(header.format == (is_dense ? header.format : 4));
      CHECK((is_dense || header.words == 0));
      if (!is_dense) CHECK(header.count == naive_k(forward_part, n));
      expected_bytes += 4 * (header.words + header.count);
    }
    CHECK(link.backward.sent_bytes.size() == expected_bytes);
  }
}

TEST_CASE("masks of several micro-batches wait for their gradients", "[codec][topk][mask]") {
  const int slots = 3;
  TwoWayLink link(topk(0.1), following(topk(0.1)), slots);
  const std::vector<std::vector<std::uint32_t>> orders = {{0, 1, 2}, {2, 0, 1}};
  std::uint64_t step = 0;
  for (const auto& order : orders) {
    std::map<std::uint32_t, Floats> seen;
    for (std::uint32_t m = 0; m < slots; ++m) {
      link.forward.crossing.step = step;
      link.forward.crossing.micro_batch = m;
      seen[m] = link.forward.cross({m}, tokens_of({m}), rows_of({m}, static_cast<int>(step)));
    }
    for (const std::uint32_t m : order) {
      link.backward.crossing.step = step;
      link.backward.crossing.micro_batch = m;
      const Floats back = link.backward.cross({m}, tokens_of({m}), rows_of({m}, 77));
      const Floats g = values_of(m, 77);
      const std::size_t n = g.size();
      CHECK(sample_of(back, 0, n) == where_different(Floats(n), sample_of(seen[m], 0, n), g));
    }
    ++step;
  }

  SECTION("masks of an earlier step are dropped") {
    for (std::uint32_t m = 0; m < 2 * slots; ++m) {
      link.forward.crossing.step = step++;
      link.forward.crossing.micro_batch = m;
      link.forward.cross({0}, {3}, rows_of({0}, 0));
    }
  }
  SECTION("more micro-batches than slots are refused") {
    for (std::uint32_t m = 0; m <= slots; ++m) {
      link.forward.prepare({0}, {3});
      link.forward.crossing.step = step;
      link.forward.crossing.micro_batch = m;
      if (m < slots)
        link.forward.encode(rows_of({0}, 0));
      else
        CHECK_THROWS_AS(link.forward.encode(rows_of({0}, 0)), InternalError);
    }
  }
  SECTION("an evaluation uses no slots") {
    for (std::uint32_t m = 0; m <= slots; ++m) {
      link.forward.crossing.step = step;
      link.forward.crossing.training = false;
      link.forward.crossing.micro_batch = m;
      link.forward.cross({0}, {3}, rows_of({0}, 0));
      --link.forward.crossing.step;
    }
  }
}

TEST_CASE("gradients of activations in a warm-up have their own positions", "[codec][topk][mask]") {
  CodecSettings activations = topk(0.1);
  activations.warmup_epochs = 1;
  TwoWayLink link(activations, following(topk(0.2)));
  for (const double epoch : {0.0, 1.0}) {
    link.forward.crossing.epoch = link.backward.crossing.epoch = epoch;
    const Floats seen = link.forward.cross({0}, {3}, rows_of({0}, 0));
    const Floats back = link.backward.cross({0}, {3}, rows_of({0}, 9));
    const Floats g = values_of(0, 9);
    const std::size_t n = g.size();
    const Floats expected = epoch < 1 ? naive_sparse(g, naive_k(0.2, n))
                                      : where_different(Floats(n), sample_of(seen, 0, n), g);
    CHECK(sample_of(back, 0, n) == expected);
  }
}

TEST_CASE("a warm-up of gradients releases the masks of their activations", "[codec][topk][mask]") {
  CodecSettings gradients = following(topk(0.2));
  gradients.warmup_epochs = 1;
  const bool ef21 = GENERATE(false, true);
  if (ef21) gradients = with_feedback(gradients, FeedbackKind::ef21);
  TwoWayLink link(topk(0.1), gradients);
  for (const double epoch : {0.0, 1.0})
    for (std::uint32_t m = 0; m < 3; ++m) {
      const std::uint64_t step = epoch < 1 ? 0 : 1;
      for (CodecLink* direction : {&link.forward, &link.backward}) {
        direction->crossing.epoch = epoch;
        direction->crossing.step = step;
        direction->crossing.micro_batch = m;
      }
      link.forward.cross({m}, tokens_of({m}), rows_of({m}, 0));
      const Floats back = link.backward.cross({m}, tokens_of({m}), rows_of({m}, 9));
      const Floats g = values_of(m, 9);
      if (epoch < 1) CHECK(sample_of(back, 0, g.size()) == g);
    }
}

TEST_CASE("gradients that are not finite at given positions", "[codec][topk][mask][hostile]") {
  const auto values = GENERATE(ChosenValues::fp32, ChosenValues::fp16, ChosenValues::codes);
  const int kind = GENERATE(0, 1, 2);
  const bool measures = GENERATE(false, true);
  CAPTURE(values, kind, measures);
  CodecSettings gradients = following(topk(0.1));
  gradients.values = values;
  gradients.bits = 8;
  if (kind == 1) gradients = with_feedback(gradients, FeedbackKind::ef);
  if (kind == 2) gradients = with_feedback(gradients, FeedbackKind::ef21);
  TwoWayLink link(topk(0.5), gradients, 1, {1, 1, 40}, 1);
  link.backward.sender->measure_errors(measures);
  const float inf = std::numeric_limits<float>::infinity();
  Floats x(40), g(40, 0.5f);
  for (std::size_t i = 0; i < 40; i += 2) x[i] = 1.0f + static_cast<float>(i);
  g[0] = inf;
  g[2] = -inf;
  g[4] = std::nanf("");
  g[5] = inf;  // not sent
  g[6] = 0;
  for (int visit = 0; visit < 3; ++visit) {
    link.forward.cross({0}, {1}, x);
    const Floats back = link.backward.cross({0}, {1}, g);
    for (const float value : back) REQUIRE(std::isfinite(value));
    if (kind == 0) {
      CHECK(back[0] > 0);
      CHECK(back[2] < 0);
      CHECK(back[4] == 0);
      CHECK(back[5] == 0);
      CHECK(back[8] == Approx(0.5f).epsilon(0.01));
      CHECK(back[9] == 0);
    }
    if (kind == 0) continue;
    for (const float value : link.backward.floats(0)) REQUIRE(std::isfinite(value));
  }
  CHECK(link.backward.sender->take_statistics(ExecSpace()).nonfinite == 12);
}

TEST_CASE("payloads of gradients that do not fit their masks are refused",
          "[codec][topk][mask][hostile]") {
  TwoWayLink link(topk(0.1), following(topk(0.1)));
  link.forward.cross({0, 1}, {3, 2}, rows_of({0, 1}, 0));
  link.backward.prepare({0, 1}, {3, 2});
  const auto good = link.backward.encode(rows_of({0, 1}, 3));
  const auto refused = [&](const std::vector<std::uint8_t>& payload) {
    CHECK_THROWS_AS(link.backward.decode(payload), UserError);
  };
  auto damaged = good;
  damaged[0] += 1;  // one more value than positions
  damaged.resize(good.size() + 4);
  refused(damaged);
  damaged = good;
  damaged[0] -= 1;
  damaged.resize(good.size() - 4);
  refused(damaged);
  damaged = good;
  damaged[8] = 0;  // all positions
  refused(damaged);
  damaged = good;
  damaged[9] = 3;  // bits of positions
  refused(damaged);
  damaged = good;
  damaged.pop_back();
  refused(damaged);
  link.backward.decode(good);
}

TEST_CASE("contradictory settings of positions are refused", "[codec][topk][mask]") {
  const CodecShape shape{1, 1, 40};
  CHECK(make_forward_masks(topk(0.1), topk(0.1), shape, 1) == nullptr);
  CodecSettings settings = following(topk(0.1));
  settings.kind = CodecKind::directq;
  CHECK_THROWS_AS(make_codec(settings, shape, MemoryStorage::fp32), UserError);
  settings = with_feedback(following(topk(0.1)), FeedbackKind::mixed);
  CHECK_THROWS_AS(make_codec(settings, shape, MemoryStorage::fp32), UserError);
  const auto alone = make_codec(following(topk(0.1)), shape, MemoryStorage::fp32);
  const auto plain = make_codec(topk(0.1), shape, MemoryStorage::fp32);
  CHECK(alone->id() != plain->id());
  const auto feedback =
      make_codec(with_feedback(topk(0.1), FeedbackKind::ef), shape, MemoryStorage::fp32);
  CHECK(alone->id() != feedback->id());
  const auto before = alone->memory_bytes();
  const auto masks = make_forward_masks(topk(0.5), following(topk(0.1)), shape, 3);
  alone->share(masks);
  plain->share(masks);
  // Room for 20 positions and values instead of 4, and masks of three micro-batches.
  CHECK(alone->memory_bytes() == before + 2 * 4 * (20 - 4) + 3 * 4 * (20 + 1));
}
