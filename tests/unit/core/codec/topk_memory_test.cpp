// SPDX-License-Identifier: BSD-3-Clause
// TopK and quantised values with records at the ends: EF, EF-mixed and EF21 (arXiv 2401.07788), and
// AQ-SGD (arXiv 2206.01299) with TopK as its codec.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "core/codec/codec.hpp"
#include "support/codec_link.hpp"
#include "support/codec_reference.hpp"
#include "support/drifting_samples.hpp"
#include "support/topk_reference.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

CodecSettings topk(double part, bool feedback, FeedbackKind kind = FeedbackKind::ef) {
  CodecSettings settings;
  settings.kind = CodecKind::topk;
  settings.topk = part;
  settings.values = ChosenValues::fp32;
  settings.error_feedback = feedback;
  settings.feedback_kind = kind;
  return settings;
}

CodecSettings topk_delta(double part, FirstVisit first_visit) {
  CodecSettings settings = topk(part, false);
  settings.kind = CodecKind::aqsgd_topk;
  settings.first_visit = first_visit;
  return settings;
}

/// Returns the record of a sample: its values, and zeros for padding.
Floats padded(Floats values) {
  values.resize(kSampleValues);
  return values;
}

double norm2(const Floats& x) {
  double total = 0;
  for (const float value : x) total += double{value} * value;
  return total;
}

/// Runs kSteps and calls check(id, x, what the receiver saw) for every visit.
template <class Check>
void visit_all(CodecLink& link, const Check& check) {
  for (int step = 0; step < static_cast<int>(kSteps.size()); ++step) {
    const auto& ids = kSteps[static_cast<std::size_t>(step)];
    const Floats seen = link.cross(ids, tokens_of(ids), rows_of(ids, step));
    for (std::size_t b = 0; b < ids.size(); ++b) {
      CAPTURE(step, b);
      const Floats x = values_of(ids[b], step);
      check(ids[b], x, sample_of(seen, b, x.size()));
      for (std::size_t i = x.size(); i < kSampleValues; ++i)
        REQUIRE(seen[b * kSampleValues + i] == 0);
    }
  }
}

}  // namespace

TEST_CASE("topk with error feedback follows its formula to the bit", "[codec][topk][feedback]") {
  const double part = GENERATE(0.5, 0.1, 0.02);
  CodecLink link(topk(part, true), kShape, MemoryStorage::fp32, 3);
  std::map<std::uint64_t, Floats> errors;
  visit_all(link, [&](std::uint64_t id, const Floats& x, const Floats& seen) {
    Floats& e = errors[id];
    e.resize(x.size());
    const Floats wanted = sum(x, e);
    REQUIRE(seen == naive_sparse(wanted, naive_k(part, x.size())));
    e = sum(wanted, seen, -1);
    REQUIRE(link.floats(id) == padded(e));
  });
}

namespace {

struct Mixed {
  Floats values;  ///< what is sent, zeros elsewhere
  int from_errors = 0;
};

/// EF-mixed: the larger half of the k positions are those of the largest |x|, the others those of
/// the largest |e|. Positions that would have zeros go to errors and then to values.
Mixed naive_mixed(const Floats& x, const Floats& e, std::size_t k, bool is_first) {
  const Floats wanted = sum(x, e);
  Floats from_x = x, from_e = e;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (wanted[i] == 0) from_x[i] = from_e[i] = 0;
  Mixed result{Floats(x.size())};
  std::size_t count = 0;
  const auto take = [&](const Floats& from, std::size_t most) {
    const auto positions = naive_topk(from, most);
    for (const std::uint32_t i : positions) {
      result.values[i] = wanted[i];
      from_x[i] = from_e[i] = 0;
    }
    count += positions.size();
    return static_cast<int>(positions.size());
  };
  take(Floats(from_x), is_first ? k : k - k / 2);
  result.from_errors = take(Floats(from_e), k - count);
  take(Floats(from_x), k - count);
  return result;
}

}  // namespace

TEST_CASE("mixed feedback shares topk's positions between values and errors",
          "[codec][topk][feedback]") {
  const double part = GENERATE(0.5, 0.1, 0.02);
  CodecLink link(topk(part, true, FeedbackKind::mixed), kShape, MemoryStorage::fp32, 3);
  std::map<std::uint64_t, Floats> errors;
  int from_errors = 0;
  visit_all(link, [&](std::uint64_t id, const Floats& x, const Floats& seen) {
    const bool is_first = errors.count(id) == 0;
    Floats& e = errors[id];
    e.resize(x.size());
    const Floats wanted = sum(x, e);
    const Mixed chosen = naive_mixed(x, e, naive_k(part, x.size()), is_first);
    from_errors += chosen.from_errors;
    REQUIRE(seen == chosen.values);
    e = sum(wanted, seen, -1);
    REQUIRE(link.floats(id) == padded(e));
  });
  CHECK(from_errors > 0);
}

// Errors of zero, values of zero, and errors that cancel values leave their places to others.
TEST_CASE("mixed feedback sends k values if as many are nonzero", "[codec][topk][feedback]") {
  const CodecShape shape{1, 1, 100};
  const std::size_t k = 10;
  CodecLink link(topk(0.1, true, FeedbackKind::mixed), shape, MemoryStorage::fp32);
  const auto values = [](std::size_t count, float factor) {
    Floats x(100);
    for (std::size_t i = 0; i < count; ++i)
      x[7 * i % 100] = factor * std::cos(static_cast<float>(3 * i + 1));
    return x;
  };
  Floats cancelling;  // the negated errors of the visit before, except for two
  Floats e(100);
  const auto visit = [&](const Floats& x, std::size_t sent) {
    const Mixed chosen = naive_mixed(x, e, k, link.visits[0] == 0);
    const Floats wanted = sum(x, e);
    REQUIRE(link.cross({0}, {1}, x) == chosen.values);
    CHECK(header_at(link.sent_bytes, 0).count == sent);
    e = sum(wanted, chosen.values, -1);
    REQUIRE(link.floats(0) == e);
  };
  visit(values(6, 1), 6);    // all of the values: no errors
  visit(values(80, 1), 10);  // only values
  visit(values(3, 2), 10);   // three values, and errors
  visit(values(1, 1), 10);   // almost only errors
  for (const float left : e) cancelling.push_back(-left);
  cancelling[5] = 1;
  cancelling[6] = -2;
  visit(cancelling, 2);  // all others are zero
  visit(values(80, 1), 10);
}

TEST_CASE("topk with EF21 follows its formula at both ends", "[codec][topk][feedback]") {
  const double part = GENERATE(0.5, 0.1, 0.02);
  CodecLink link(topk(part, true, FeedbackKind::ef21), kShape, MemoryStorage::fp32, 3);
  std::map<std::uint64_t, Floats> memories;
  visit_all(link, [&](std::uint64_t id, const Floats& x, const Floats& seen) {
    Floats& g = memories[id];
    g.resize(x.size());
    const std::size_t k = naive_k(part, x.size());
    const Floats change = sum(x, g, -1);
    g = sum(g, naive_sparse(change, k));
    REQUIRE(seen == g);
    REQUIRE(link.floats(id) == padded(g));
    const double rest = 1 - static_cast<double>(k) / static_cast<double>(x.size());
    REQUIRE(norm2(sum(x, g, -1)) <= rest * norm2(change) * (1 + 1e-6));
  });
}

TEST_CASE("AQ-SGD with TopK keeps the same memories at both ends", "[codec][topk]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16,
                                MemoryStorage::bits8, MemoryStorage::bits4);
  const auto first_visit = GENERATE(FirstVisit::fp32, FirstVisit::quantize8);
  const auto values = GENERATE(ChosenValues::fp32, ChosenValues::fp16, ChosenValues::codes);
  CodecSettings settings = topk_delta(0.2, first_visit);
  settings.values = values;
  settings.bits = 3;
  settings.tile = 24;
  CodecLink link(settings, kShape, storage, 3);
  std::map<std::uint64_t, Floats> memories;
  std::map<std::uint64_t, int> visits;
  visit_all(link, [&](std::uint64_t id, const Floats& x, const Floats& seen) {
    const int visit = visits[id]++;
    const double error = norm2(sum(x, seen, -1));
    if (visit == 0) {
      CHECK(error <= (first_visit == FirstVisit::fp32 ? 0 : 1e-4) * norm2(x));
    } else if (storage == MemoryStorage::fp32) {
      const Floats change = sum(x, memories[id], -1);
      if (values == ChosenValues::fp32)
        CHECK(seen == sum(memories[id], naive_sparse(change, naive_k(0.2, x.size()))));
      CHECK(error <= 0.8 * norm2(change));
    }
    memories[id] = seen;
    if (storage == MemoryStorage::fp32) CHECK(link.floats(id) == padded(seen));
  });
}

TEST_CASE("EF21 with quantised values follows its formula at both ends", "[codec][feedback]") {
  const int bits = GENERATE(2, 3, 8);
  const int width = GENERATE(16, 37);
  CodecSettings settings;
  settings.kind = CodecKind::directq;
  settings.bits = bits;
  settings.scale = ScaleKind::tile;
  settings.tile = width;
  settings.error_feedback = true;
  settings.feedback_kind = FeedbackKind::ef21;
  CodecLink link(settings, kShape, MemoryStorage::fp32, 3);
  std::map<std::uint64_t, Floats> memories;
  visit_all(link, [&](std::uint64_t id, const Floats& x, const Floats& seen) {
    Floats& g = memories[id];
    g.resize(x.size());
    const Floats change = sum(x, g, -1);
    for (std::size_t row = 0; row < x.size(); row += 37)
      for (int first = 0; first < 37; first += width) {
        const auto begin = change.begin() + static_cast<std::ptrdiff_t>(row) + first;
        const Floats tile(begin, begin + std::min(width, 37 - first));
        const Quantized q = naive_quantize(tile, bits, settings.levels);
        for (std::size_t i = 0; i < tile.size(); ++i)
          g[row + static_cast<std::size_t>(first) + i] += static_cast<float>(q.level[i]) * q.step;
      }
    REQUIRE(seen == g);
    REQUIRE(link.floats(id) == padded(g));
  });
}

TEST_CASE("topk with feedback sends later what it leaves out", "[codec][topk][feedback]") {
  const auto kind = GENERATE(FeedbackKind::ef, FeedbackKind::ef21, FeedbackKind::mixed);
  const CodecShape shape{1, 1, 100};
  CodecLink link(topk(0.05, true, kind), shape, MemoryStorage::fp16);
  CodecLink without(topk(0.05, false), shape, MemoryStorage::fp16);
  Floats x(100);
  for (int i = 0; i < 100; ++i)
    x[static_cast<std::size_t>(i)] = std::sin(static_cast<float>(3 * i + 1));
  const auto miss = [&](CodecLink& ends) {
    std::vector<double> total(100);
    Floats seen;
    constexpr int kVisits = 200;
    for (int visit = 0; visit < kVisits; ++visit) {
      seen = ends.cross({0}, {1}, x);
      for (std::size_t i = 0; i < 100; ++i) total[i] += seen[i];
    }
    double largest = 0;  // the mean of EF's values approaches x, EF21's last one does
    for (std::size_t i = 0; i < 100; ++i)
      largest = std::max(largest, kind == FeedbackKind::ef21 && &ends == &link
                                      ? std::abs(double{seen[i]} - x[i])
                                      : std::abs(total[i] / kVisits - x[i]));
    return largest;
  };
  CHECK(miss(link) < (kind == FeedbackKind::ef21 ? 0.01 : 0.25));
  CHECK(miss(without) > 0.9);
}

// With powers of two, everything else is the same to the bit.
TEST_CASE("memories and errors do not depend on the step's scale", "[codec][topk][feedback]") {
  const auto kind = GENERATE(FeedbackKind::ef, FeedbackKind::ef21, FeedbackKind::mixed);
  const auto codec = GENERATE(CodecKind::topk, CodecKind::directq);
  if (codec == CodecKind::directq && kind == FeedbackKind::mixed) return;
  CodecSettings settings = topk(0.2, true, kind);
  settings.kind = codec;
  const CodecShape shape{1, 2, 40};
  CodecLink plain(settings, shape, MemoryStorage::fp32),
      scaled(settings, shape, MemoryStorage::fp32);
  for (int visit = 0; visit < 6; ++visit) {
    CAPTURE(visit);
    const float factor = std::ldexp(1.0f, visit % 2 == 0 ? 0 : -7);
    Floats x(80), y(80);
    for (std::size_t i = 0; i < 80; ++i) {
      x[i] = std::cos(static_cast<float>(static_cast<int>(i * i) + visit));
      y[i] = factor * x[i];
    }
    scaled.crossing.scale = factor;
    const Floats expected = plain.cross({0}, {2}, x);
    Floats seen = scaled.cross({0}, {2}, y);
    for (float& value : seen) value /= factor;
    CHECK(seen == expected);
    CHECK(scaled.floats(0) == plain.floats(0));
  }
}

// Both ends multiply and divide alike, whatever the factor.
TEST_CASE("memories are the same at both ends at any scale", "[codec][topk][feedback]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bits8);
  const auto codec = GENERATE(CodecKind::topk, CodecKind::directq);
  CodecSettings settings = topk(0.3, true, FeedbackKind::ef21);
  settings.kind = codec;
  settings.values = ChosenValues::fp16;
  CodecLink link(settings, kShape, storage, 3);
  double scale = 1e-4;
  visit_all(link, [&](std::uint64_t, const Floats&, const Floats&) {
    link.crossing.scale = scale *= 1.37;
  });
}

TEST_CASE("a warm-up leaves no error and fills memories", "[codec][topk][feedback]") {
  const auto kind = GENERATE(FeedbackKind::ef, FeedbackKind::ef21, FeedbackKind::mixed);
  const auto codec = GENERATE(CodecKind::topk, CodecKind::directq, CodecKind::aqsgd_topk);
  if (codec == CodecKind::directq && kind == FeedbackKind::mixed) return;
  if (codec == CodecKind::aqsgd_topk && kind != FeedbackKind::ef) return;
  CodecSettings settings = topk(0.1, codec != CodecKind::aqsgd_topk, kind);
  settings.kind = codec;
  settings.warmup_epochs = 1;
  const CodecShape shape{1, 2, 40};
  CodecLink link(settings, shape, MemoryStorage::fp32);
  link.crossing.scale = 0.25;
  Floats x(80);
  for (std::size_t i = 0; i < 80; ++i) x[i] = std::cos(static_cast<float>(i * i));
  CHECK(link.cross({0}, {2}, x) == x);
  CHECK(link.sent_bytes.size() == 4 * 80);
  const bool remembers = codec == CodecKind::aqsgd_topk || kind == FeedbackKind::ef21;
  Floats kept(80);
  for (std::size_t i = 0; i < 80 && remembers; ++i) kept[i] = x[i] / 0.25f;
  CHECK(link.floats(0) == kept);
  link.crossing.epoch = 1;
  const Floats seen = link.cross({0}, {2}, x);
  if (remembers)
    CHECK(seen == x);
  else
    CHECK(seen != x);
  CHECK(link.sent_bytes.size() < 4 * 80);
}

TEST_CASE("memories and errors stay finite for all values", "[codec][topk][feedback]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16,
                                MemoryStorage::bits8, MemoryStorage::bits4);
  const auto values = GENERATE(ChosenValues::fp32, ChosenValues::fp16, ChosenValues::codes);
  const auto kind = GENERATE(0, 1, 2, 3);
  CodecSettings settings = kind == 3 ? topk_delta(0.2, FirstVisit::quantize8)
                                     : topk(0.2, true, static_cast<FeedbackKind>(kind));
  settings.values = values;
  const CodecShape shape{1, 1, 40};
  CodecLink link(settings, shape, storage);
  link.crossing.scale = kind == 3 ? 1.0 : 1e-6;
  check_hostile_values(link, storage);
}

TEST_CASE("error sums with memories compare the values seen with the original ones",
          "[codec][topk][feedback]") {
  const auto kind = GENERATE(0, 1, 2, 3);
  CodecSettings settings = kind == 3 ? topk_delta(0.2, FirstVisit::quantize8)
                                     : topk(0.2, true, static_cast<FeedbackKind>(kind));
  CodecLink link(settings, kShape, MemoryStorage::fp16, 3);
  link.sender->measure_errors(true);
  double error2 = 0, signal2 = 0;
  std::uint64_t elements = 0;
  visit_all(link, [&](std::uint64_t, const Floats& x, const Floats& seen) {
    error2 += norm2(sum(x, seen, -1));
    signal2 += norm2(x);
    elements += x.size();
  });
  const CodecStatistics sums = link.sender->take_statistics(ExecSpace());
  CHECK(sums.elements == elements);
  CHECK(sums.error2 == Approx(error2).epsilon(1e-4));
  CHECK(sums.signal2 == Approx(signal2).epsilon(1e-4));
}
