// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/emulated_link.hpp"

#include <catch2/catch.hpp>

using namespace deltapipe;

namespace {

const TimePoint zero = TimePoint(std::chrono::hours(100));
TimePoint at(double ms) {
  return zero +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms));
}
double ms(TimePoint time) {
  return seconds_between(zero, time) * 1e3;
}

/// 1 ms a byte.
LinkSettings slow(double latency_ms = 0) {
  LinkSettings settings;
  settings.bits_per_second = 8000;
  settings.latency_seconds = latency_ms * 1e-3;
  return settings;
}

}  // namespace

TEST_CASE("An emulated link books messages one after the other", "[link]") {
  EmulatedLink link(slow(250));
  const auto a = link.book(at(0), 100);
  const auto b = link.book(at(50), 10);
  const auto c = link.book(at(500), 1);
  CHECK(ms(a.start) == 0);
  CHECK(ms(a.arrival) == Approx(350));
  CHECK(ms(b.start) == Approx(100));
  CHECK(ms(b.arrival) == Approx(360));
  CHECK(ms(c.start) == Approx(500));
  CHECK(ms(c.arrival) == Approx(751));
  CHECK(link.seconds_of(100) == Approx(0.1));
}

TEST_CASE("A message that is reported late uses the link's free time since its first byte",
          "[link]") {
  EmulatedLink link(slow());
  CHECK(ms(link.book(at(10), 2).end) == Approx(12));
  CHECK(ms(link.book(at(20), 5).end) == Approx(25));
  // There since 0: 10 ms before the first, 8 between, the rest after the second.
  const auto late = link.book(at(0), 100);
  CHECK(ms(late.start) == Approx(0));
  CHECK(ms(late.end) == Approx(107));
  CHECK(ms(link.book(at(50), 1).start) == Approx(107));
  CHECK(ms(link.book(at(200), 1).end) == Approx(201));
}

TEST_CASE("A link with latency alone delays every message alike", "[link]") {
  LinkSettings settings;
  settings.latency_seconds = 0.005;
  EmulatedLink link(settings);
  for (int i = 0; i < 3; ++i) CHECK(ms(link.book(at(1), 1 << 20).arrival) == Approx(6));
  CHECK(link.emulates());
  CHECK_FALSE(EmulatedLink(LinkSettings{}).emulates());
}

TEST_CASE("Absurd sizes and rates stay within the clock", "[link]") {
  LinkSettings settings;
  settings.bits_per_second = 1e-300;
  settings.latency_seconds = 1e300;
  EmulatedLink link(settings);
  for (int i = 0; i < 3; ++i) CHECK(link.book(at(0), 1000).arrival > at(1e9));
}

TEST_CASE("Ethernet frames take 66 bytes a segment of 1448", "[link]") {
  EmulatedLink link(slow(), Framing::ethernet);
  CHECK(link.seconds_of(0) == 0);
  CHECK(link.seconds_of(1) == Approx(0.067));
  CHECK(link.seconds_of(1448) == Approx(1.514));
  CHECK(link.seconds_of(1449) == Approx(1.581));
  CHECK(EmulatedLink(slow()).seconds_of(1448) == Approx(1.448));
}

TEST_CASE("Collectives over wires of ranks by hand", "[link]") {
  const auto wire = [](double latency) {
    return RankWire{std::make_shared<EmulatedLink>(slow(latency)),
                    std::make_shared<EmulatedLink>(slow(latency))};
  };
  // A tree of 4 goes up two levels and down two.
  CHECK(ms(wire(3).book_tree(at(0), 4, 100)) == Approx(4 * 103));
  CHECK(ms(wire(0).book_tree(at(0), 5, 10)) == Approx(60));
  // Down the two levels of a tree of 3 or 4, from its root and elsewhere.
  for (const int ranks : {3, 4}) {
    for (const bool is_root : {true, false}) {
      const RankWire own = wire(3);
      CHECK(ms(own.book_broadcast(at(0), ranks, is_root, 100)) == Approx(206));
      CHECK(ms((is_root ? own.out : own.in)->book(at(206), 1).start) == Approx(206));
      CHECK(ms((is_root ? own.in : own.out)->book(at(0), 1).start) == Approx(0));
    }
    CHECK(ms(wire(3).book_barrier(at(0), ranks)) == Approx(2 * 4));
  }
  CHECK(ms(wire(3).book_broadcast(at(0), 1, true, 100)) == 0);
  CHECK(ms(wire(3).book_barrier(at(0), 1)) == 0);
  // All to the root; the others are free once theirs has left.
  CHECK(ms(wire(3).book_gather(at(0), true, 300)) == Approx(303));
  CHECK(ms(wire(3).book_gather(at(0), false, 100)) == Approx(100));
  CHECK(all_reduce_bytes(4, 100) == 600);
  CHECK(all_reduce_bytes(1, 100) == 0);
  // Messages under way go first, and the tree's then hold up later ones.
  const RankWire busy = wire(0);
  busy.out->book(at(0), 50);
  CHECK(ms(busy.book_tree(at(10), 2, 100)) == Approx(50 + 100 + 100));
  CHECK(ms(busy.out->book(at(60), 1).start) == Approx(150));
}
