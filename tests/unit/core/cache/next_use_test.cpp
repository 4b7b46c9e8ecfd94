// SPDX-License-Identifier: BSD-3-Clause
#include "core/cache/next_use.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <vector>

using deltapipe::AnnouncedUses;
using deltapipe::EvictionOrder;

namespace {

/// Position of the first use of `sample` in `sequence` at or after `from`.
std::uint64_t find_use(const std::vector<std::uint64_t>& sequence, std::size_t from,
                       std::uint64_t sample) {
  for (std::size_t i = from; i < sequence.size(); ++i)
    if (sequence[i] == sample) return i;
  return AnnouncedUses::kUnknown;
}

}  // namespace

TEST_CASE("announced uses give the next use of every sample", "[cache]") {
  std::mt19937 random(1);
  const std::uint64_t samples = 13;
  std::vector<std::uint64_t> sequence;
  AnnouncedUses uses(samples);
  std::size_t used = 0;
  for (int step = 0; step < 2000; ++step) {
    if (random() % 2 == 0 || used == sequence.size()) {
      sequence.push_back(random() % samples);
      uses.announce(sequence.back());
    } else {
      uses.consume(sequence[used++]);
    }
    REQUIRE(uses.size() == sequence.size() - used);
    for (std::uint64_t sample = 0; sample < samples; ++sample)
      REQUIRE(uses.next_use(sample) == find_use(sequence, used, sample));
  }
}

TEST_CASE("announced uses may be consumed out of order, unannounced, or forgotten", "[cache]") {
  AnnouncedUses uses(5);
  for (std::uint64_t sample : {3, 1, 3, 4}) uses.announce(sample);
  uses.consume(1);
  uses.consume(0);
  REQUIRE(uses.size() == 4);
  REQUIRE(uses.is_consumed(1));
  REQUIRE(uses.next_use(1) == AnnouncedUses::kUnknown);
  uses.consume(3);
  REQUIRE(uses.size() == 2);
  REQUIRE(uses.sample_at(0) == 3);
  REQUIRE(uses.next_use(3) == 2);
  uses.clear();
  REQUIRE(uses.size() == 0);
  REQUIRE(uses.next_use(3) == AnnouncedUses::kUnknown);
  uses.announce(3);
  REQUIRE(uses.next_use(3) == 4);
}

TEST_CASE("the record given up is the one needed last", "[cache]") {
  EvictionOrder order(8);
  REQUIRE(order.empty());
  order.insert(0, 17);
  order.insert(1, 3);
  order.insert(2, 40);
  REQUIRE(order.victim() == 2);
  order.insert(2, 4);
  REQUIRE(order.victim() == 0);
  order.insert(5, AnnouncedUses::kUnknown);
  order.insert(6, AnnouncedUses::kUnknown);
  REQUIRE(order.victim() == 6);
  order.insert(6, 1);
  REQUIRE(order.victim() == 5);
  order.erase(5);
  order.erase(5);
  REQUIRE(!order.contains(5));
  REQUIRE(order.victim() == 0);
}
